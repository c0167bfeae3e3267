"""Locust's master and workers of a run: what they are told, how the master fares, what all say at the end."""
