"""One run from start to seal: deployment, phases, clocks, what the nodes hold made the tables of a run."""
