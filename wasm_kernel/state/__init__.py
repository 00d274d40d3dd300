"""Saving a session's memory and files over time, and bringing them back."""
