"""What is preloaded into servers that are not ours, and the readers of what it leaves."""
