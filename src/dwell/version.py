"""Which version of Dwell this is."""

VERSION = "0.1.0"
