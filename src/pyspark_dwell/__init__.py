"""Lets Spark find the data source ``dwell`` by itself: it looks for modules with this prefix."""

try:
    from dwell.spark.source import DwellSource as DefaultSource
except ImportError:  # One module that cannot be imported would hide the sources of all packages.
    __all__ = []
else:
    __all__ = ["DefaultSource"]
