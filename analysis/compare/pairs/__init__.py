"""Two sides measured pair by pair: what changed, whether that is shown, and where it comes from."""
