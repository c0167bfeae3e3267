"""Commands that decide: whether promises are kept, and up to what load."""
