"""Screens, pages and pictures."""
