"""Nsight Systems on a node: finding it, launching a server under it, recording, its clock marks."""
