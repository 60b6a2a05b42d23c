"""Checks the arguments of callers: single values, and columns of them."""
