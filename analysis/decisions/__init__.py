"""Promises held to runs: what a run says of them."""
