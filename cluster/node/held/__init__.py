"""What the agent of a node holds: the observer, the server, the folder with its files."""
