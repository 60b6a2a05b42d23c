"""Relays: what comes from a broker is held until it is due, and goes on to a broker."""
