"""What is said of a run: summary.json, screens, pages, pictures; derive.py makes all that is derived, in
order."""
