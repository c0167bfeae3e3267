"""Experiments that were published: what they ran, what they found, and the scenarios that run them again."""
