"""Promises: what a service is held to, as a scenario states it."""
