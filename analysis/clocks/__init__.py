"""One time for all nodes: brackets of offsets, the track through them, phases on the run's clock."""
