"""How nodes are set up: files for launchers, and what a node without a package index needs."""
