"""Published experiments beside ours: figures of our runs, where they agree, the page and the document."""
