"""What libraries of ours record inside a server: whether they are in it, and what is taken from them while it runs."""
