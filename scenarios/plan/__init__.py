"""The plan of a run: every arrival with its phase, rows and payload, dealt to workers."""
