"""Where it runs: Ray session, placement, servers, clocks, the run and the command line."""
