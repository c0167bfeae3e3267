"""Until when a worker may send, and what it takes over of one that is lost."""
