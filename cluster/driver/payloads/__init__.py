"""A user's data as requests: held to the model, encoded once on the driver, brought to the clients' nodes."""
