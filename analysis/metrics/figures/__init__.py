"""Figures from what the sweeps counted."""
