"""Sockets and the event loop: bytes to and from a server, HTTP/2 frames, protobuf, Triton's control calls."""
