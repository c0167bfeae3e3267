"""Before a run is trusted: every node looked at, and this host's client held to null servers of known behaviour."""
