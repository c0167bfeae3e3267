"""Locust's load as a run has it: the plan, and the files that every node needs."""
