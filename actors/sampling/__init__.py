"""The observer of a node: samplers of host, CPU, threads, Triton and GPU, and the answers of its clock."""
