"""Leases of load workers, and what becomes of the arrivals of one that is lost."""
