"""Commands that decide: whether promises are kept, up to what load, which cell or side is better."""
