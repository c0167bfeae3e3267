"""The tables of a run directory, by what they tell of."""
