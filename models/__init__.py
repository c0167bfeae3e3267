"""What is served: specs, payloads, reference networks and the Triton model repository."""
