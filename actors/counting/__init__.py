"""What a worker counts beside its records: late requests, and what it uses itself."""
