"""Measured requests as arrays: failures, bursts, users, workers, servers, load asked and sent, what recording cost."""
