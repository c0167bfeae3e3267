"""A reader for each trace format, and what tells the formats apart."""
