"""The run held to itself: Little's law, sums of parts, shares, events."""
