"""The GPU without a server: operators under torch.profiler, stages of a pipeline between CUDA events."""
