"""Recorded arrivals as files: every format read into parts; Parquet, CSV and JSON lines written."""
