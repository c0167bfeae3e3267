"""Commands about the nodes of a cluster: what sets them up, and what they need."""
