"""Figures of a series of instants: burstiness, correlation, the tick of the log it came from."""
