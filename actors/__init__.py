"""What one process does: plain classes for load, samples and profilers, without Ray."""
