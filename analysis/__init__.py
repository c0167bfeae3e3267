"""What it means: schema, store, clock, join, quantiles, validity and report, from a run directory alone."""
