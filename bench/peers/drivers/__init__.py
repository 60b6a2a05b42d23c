"""The drivers in Python: ``python -m bench.peers.drivers.NAME``, each with its peer's packages.

They import nothing but the standard library and the client that they are about, since most have an
environment of their own.
"""
