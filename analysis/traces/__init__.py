"""Figures of a trace, a synthesis with the same figures, a run as a trace."""
