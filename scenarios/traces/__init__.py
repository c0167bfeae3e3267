"""Trace files of recorded arrivals: reading, writing, replaying and scaling them."""
