"""Each request joined to the batch, kernels and calls that served it, and to its steps through several
models."""
