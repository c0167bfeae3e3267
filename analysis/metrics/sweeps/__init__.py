"""One pass over events in order of time: totals, unions, gaps, per batch and per device."""
