"""A level of load as perf_analyzer tells of it: windows and their stability, its table, its CSV, its export."""
