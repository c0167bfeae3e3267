"""Quantiles, their intervals and what dependence does to them; queues with exact answers."""
