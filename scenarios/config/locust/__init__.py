"""Locust as the load: what `load.locust` of a scenario may say."""
