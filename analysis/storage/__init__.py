"""The run directory: parts of tables, the manifest, the seal, DuckDB over them."""
