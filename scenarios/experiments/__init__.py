"""Experiments: the cells of a sweep as a file states them, and the order of their runs."""
