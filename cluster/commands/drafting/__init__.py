"""A first scenario for a server that runs already: what it serves, and a file that loads it."""
