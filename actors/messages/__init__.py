"""Inference requests as bytes, and what is read of a reply."""
