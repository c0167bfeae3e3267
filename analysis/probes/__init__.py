"""Probes of the GPU alone: the figures of their rows, and whether these can be trusted."""
