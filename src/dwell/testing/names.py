"""A folder with two sets of names: in the system's memory and on the disk.

A made, changed or removed name is so in memory at once, and on the disk for good once the folder is
synced. Until then any subset of the changes may be on the disk.
"""

import random
from typing import NamedTuple, TypeAlias

from dwell.testing.cached import CachedFile


class _Change(NamedTuple):
    """A changed name: the new one has ``node``, the old one is gone; a rename does both at once."""

    made: str | None
    gone: str | None
    node: "Node"


class CachedFolder:
    """Names in memory, and names that are surely on disk."""

    def __init__(self, *, is_real: bool = False) -> None:
        #: Whether it stands for a real folder, so that the real folders inside exist as well.
        self.is_real = is_real
        #: The open folder that has the lock, -1 for none.
        self.lock_fd = -1
        self.entries: dict[str, Node] = {}
        self._safe: dict[str, Node] = {}
        self._changes: list[_Change] = []

    def unsynced(self) -> list[str]:
        """Return the names changed since the last sync of the folder."""
        return [name for change in self._changes for name in change[:2] if name is not None]

    def add(self, name: str, node: "Node") -> None:
        """Add a name for a file or a folder."""
        self.entries[name] = node
        self._changes.append(_Change(name, None, node))

    def remove(self, name: str) -> "Node":
        """Remove a name."""
        node = self.entries.pop(name)
        self._changes.append(_Change(None, name, node))
        return node

    def rename(self, old: str, new: str) -> "Node | None":
        """Move a name's node to another name; return the node that this name had."""
        node = self.entries.pop(old)
        before = self.entries.get(new)
        self.entries[new] = node
        self._changes.append(_Change(new, old, node))
        return before

    def add_real(self, name: str) -> "CachedFolder":
        """Add a folder that has always existed."""
        self.entries[name] = self._safe[name] = folder = CachedFolder(is_real=True)
        return folder

    def sync(self) -> None:
        """Copy the names to the disk."""
        self._safe = dict(self.entries)
        self._changes.clear()

    def only_synced(self) -> "CachedFolder":
        """Return a folder with only the names that are surely on disk."""
        return self._of({name: node.only_synced() for name, node in self._safe.items()})

    def lose_power(self, chance: random.Random) -> "CachedFolder":
        """Return the folder after a power cut."""
        survived = dict(self._safe)
        part = chance.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        for change in self._changes:
            if chance.random() < part:
                if change.gone is not None and survived.get(change.gone) is change.node:
                    del survived[change.gone]
                if change.made is not None:
                    survived[change.made] = change.node
        return self._of({name: node.lose_power(chance) for name, node in survived.items()})

    def _of(self, entries: dict[str, "Node"]) -> "CachedFolder":
        folder = CachedFolder(is_real=self.is_real)
        folder.entries, folder._safe = entries, dict(entries)
        for node in entries.values():
            if isinstance(node, CachedFile):
                node.holders = 1
        return folder

    def copied(self) -> "CachedFolder":
        """Return a copy of this folder, with the same changes unsynced."""
        copies: dict[int, Node] = {}

        def copy(node: "Node") -> "Node":
            if id(node) not in copies:
                copies[id(node)] = node.copied()
            return copies[id(node)]

        folder = CachedFolder(is_real=self.is_real)
        folder.entries = {name: copy(node) for name, node in self.entries.items()}
        folder._safe = {name: copy(node) for name, node in self._safe.items()}
        folder._changes = [c._replace(node=copy(c.node)) for c in self._changes]
        for node in folder.entries.values():
            if isinstance(node, CachedFile):
                node.holders += 1
        return folder


Node: TypeAlias = CachedFile | CachedFolder
