"""What a scenario file may say: its keys, their limits, and one problem a line where it says something else."""
