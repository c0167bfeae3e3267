"""Commands that decide: whether promises are kept."""
