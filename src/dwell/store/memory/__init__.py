"""The store in memory: what a test needs, and the plainest way to keep the contract."""

from dwell.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
