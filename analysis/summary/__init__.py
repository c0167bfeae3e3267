"""summary.json: all figures of a run."""
