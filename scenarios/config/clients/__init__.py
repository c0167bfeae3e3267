"""What the load generators send and how: protocol, rows, inputs, checks, routing."""
