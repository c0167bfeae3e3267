"""Models of a running server that are loaded and unloaded for a run, and put back after it."""
