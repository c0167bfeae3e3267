"""What Locust's own limits did to the figures: its users' time, users asked for, its statistics beside exact rows."""
