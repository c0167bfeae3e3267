"""Runs beside runs: a run as a row, pairs, repeats, what profiling costs."""
