"""Makes `tests` a package that every test can import from: pytest puts the folder above it on the path."""
