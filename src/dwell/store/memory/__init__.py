"""The store in memory: for tests, and the simplest implementation of the contract."""

from dwell.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
