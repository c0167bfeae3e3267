"""Figures of batches, instances, GPUs and windows."""
