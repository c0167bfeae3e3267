"""Each request joined to the batch, kernels and calls that served it."""
