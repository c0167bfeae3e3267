"""What runs on a server's or a client's node: its agent, Triton, profiler, spill files."""
