"""Checks of a node before a run: what is missing, what it limits, how it is mended."""
