"""Published experiments run again: their parts as sweeps or probes, and what they found as files."""
