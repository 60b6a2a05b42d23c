"""Benchmarks: Dwell against its peers, in turn, on one machine, in one run.

``python -m bench NAME [--json]`` runs one; ``python -m bench all --small`` runs each once, small,
so that none can rot.
"""
