"""Inputs of the user's: files and folders of every format as entries, and which of them an arrival carries."""
