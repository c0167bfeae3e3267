"""One run from start to seal: deployment, phases, clocks, gathering what the nodes hold."""
