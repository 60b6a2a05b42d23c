"""Relays: hold records from a broker until they are due, and send them on to a broker."""
