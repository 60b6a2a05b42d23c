"""Takeover: what waits elsewhere moves into a queue, while both run."""
