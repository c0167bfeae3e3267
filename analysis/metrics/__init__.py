"""The figures of a run by phase: where the time of GPUs, model instances and servers goes."""
