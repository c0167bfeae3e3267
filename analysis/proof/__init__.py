"""Queues with exact answers, and a run held to them."""
