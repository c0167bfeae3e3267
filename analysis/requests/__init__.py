"""Measured requests as arrays: failures, bursts, users, workers, load asked against load sent, what recording cost."""
