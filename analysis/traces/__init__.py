"""Figures of a trace, fits of arrival processes to it, a synthesis with the same figures."""
