"""Experiments: runs of many cells as tables, what tells cells apart, drift of the machine, the answer in words."""
