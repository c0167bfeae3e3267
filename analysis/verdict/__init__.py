"""VALID or not: the checks of a run, their order of causes, who is the bottleneck, what profiling costs."""
