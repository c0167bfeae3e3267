"""A Triton of known behaviour: HTTP and gRPC, service times that are drawn and recorded, faults on request."""
