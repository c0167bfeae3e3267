"""Arrival processes: sections of a scenario that draw when requests are due, from a seed, the same on every machine."""
