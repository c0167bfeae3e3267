"""Runs beside runs: a run as a row, pairs and repeats, what changed and why; promises held to runs and
seeds."""
