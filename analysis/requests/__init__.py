"""Measured requests as arrays: failures, bursts, users, servers, load asked and sent, what Locust's limits
did."""
