"""Recorded arrivals as files: every format read into parts, and written."""
