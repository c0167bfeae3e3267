"""Arrival processes: when requests are due, drawn from a seed, the same on every machine."""
