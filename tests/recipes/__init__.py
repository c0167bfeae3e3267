"""The recipes of CONTRIBUTING.md, followed: toys that are added to a copy of the tree, step by step."""
