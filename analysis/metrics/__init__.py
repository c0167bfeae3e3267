"""Figures of batches, instances, GPUs and windows, as queries over the tables of a run."""
