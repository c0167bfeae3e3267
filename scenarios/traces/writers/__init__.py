"""A writer for each trace format."""
