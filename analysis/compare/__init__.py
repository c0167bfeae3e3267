"""Runs beside runs: pairs, repeats, what profiling costs."""
