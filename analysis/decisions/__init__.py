"""Promises held to runs: what one run says, and what several seeds say together."""
