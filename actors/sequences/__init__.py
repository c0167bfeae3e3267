"""Requests of sequences in a worker: whose turn it is, and which connection and server a sequence has."""
