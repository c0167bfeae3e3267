"""The run directory: parts of tables, the manifest, the seal, its copy in object storage, DuckDB over it."""
