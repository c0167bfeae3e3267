"""The commands that `squall.cluster.cli` offers, one file each, and what they print."""
