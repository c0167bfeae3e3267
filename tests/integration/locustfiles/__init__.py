"""Locustfiles as Locust's documentation writes them, for a Triton with `seqlen_head`: none knows of squall."""
