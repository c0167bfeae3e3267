"""User classes for locustfiles that call Triton: payloads made by squall, request ids that its join knows."""
