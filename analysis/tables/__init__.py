"""The tables of a run directory, by what they tell of; those of samples stand beside their sources."""
