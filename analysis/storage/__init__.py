"""The run directory: its tables and manifest, parts, the seal, object storage, DuckDB over it; one time for
all nodes."""
