"""Fits arrival processes to a series of instants, and ranks them."""
