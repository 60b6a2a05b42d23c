"""A soak: mixed load on one server for a long time; its books must balance, its memory stay flat.

``python -m bench.soak --minutes 10 --connections 200`` ends with 1 when something is wrong.
"""
