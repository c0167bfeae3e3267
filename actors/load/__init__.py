"""The load worker: the engine that sends when a request is due, its clients, the rows that it records."""
