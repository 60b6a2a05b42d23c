"""Pipelines over a queue: plain PySpark modules, each with settings, a ``run`` and a last line."""
