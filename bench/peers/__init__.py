"""What people would otherwise pick, measured in turn with Dwell: ``python -m bench.peers``.

Each peer is a driver, a small program in its users' ordinary language and client, that speaks one
JSON object a line (``bench/peers/driver.py`` has the words). All measures are written once, in
``bench/peers/measures.py``, and Dwell goes through the same ones.
"""
