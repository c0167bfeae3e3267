"""Commands that decide: whether promises are kept, which cell is best."""
