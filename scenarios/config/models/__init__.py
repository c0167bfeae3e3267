"""What is served: the model of a scenario, or several with the share of the requests that each gets."""
