"""Records that stay on the nodes that made them: made into tables there, worked on there, read from elsewhere, brought
home, removed."""
