"""Sweeps: every cell of an experiment run in its order, kept in a journal, taken up again, and what it found as
files."""
