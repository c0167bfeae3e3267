"""Steps of a request: its critical path through several models, and the executions that hold one that names nobody."""
