"""Failures of real things, and books that say what they cost: what docs/reliability.md shows."""
