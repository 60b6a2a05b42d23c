"""Data classes for many messages, or their results, in columns."""
