"""What limits a run, by rules that are data, and whether its own figures agree with one another."""
