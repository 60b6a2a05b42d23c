"""The embedded store: one process, one folder, no server."""

from dwell.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
