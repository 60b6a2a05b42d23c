"""Takeover: moves waiting messages from elsewhere into a queue, while both run."""
