"""perf_analyzer's command line: its flags read, run as scenarios level by level, and told in its own words."""
