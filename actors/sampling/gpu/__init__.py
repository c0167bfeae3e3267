"""NVML: samples of the GPUs of a node, and who uses them."""
