"""Where files of a run may lie: in a folder here, in an object store."""
