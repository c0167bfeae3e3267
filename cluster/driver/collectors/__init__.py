"""What is collected beside the requests: which collectors are on, the libraries in the server, nsys phase by phase."""
