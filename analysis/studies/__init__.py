"""What several runs say: capacity, sweeps, published experiments, levels as perf_analyzer tells of them;
probes."""
