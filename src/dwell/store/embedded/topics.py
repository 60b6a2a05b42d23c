"""The topics: their numbers, their settings in columns, and what of each can be taken."""

from hashlib import blake2b

import numpy as np

from dwell.message import TopicSettings
from dwell.store.embedded.runs import Runs

_DEFAULTS = TopicSettings()


class Topics:
    """Every topic that was ever used, numbered in order of first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ready: list[Runs] = []
        self._settings: list[TopicSettings] = []
        self._numbers: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        self.lease_ms = np.zeros(16, dtype=np.int64)
        self.max_attempts = np.zeros(16, dtype=np.int64)
        self.remember_ms = np.zeros(16, dtype=np.int64)

    def find(self, name: str) -> int | None:
        """Return the number of a topic; None if it was never used."""
        return self._numbers.get(name)

    def number(self, name: str) -> int:
        """Return the number of a topic, which is made if it is new."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            self.ready.append(Runs())
            self._settings.append(_DEFAULTS)
            self._note(number, _DEFAULTS)
        return number

    def seed(self, name: str) -> int:
        """Return what the hashes of a topic's ids start from; the same after a restart."""
        seed = self._seeds.get(name)
        if seed is None:
            digest = blake2b(name.encode(), digest_size=8).digest()
            seed = self._seeds[name] = int.from_bytes(digest, "little")
        return seed

    def settings(self, name: str) -> TopicSettings:
        """Return what holds for a topic."""
        number = self._numbers.get(name)
        return _DEFAULTS if number is None else self._settings[number]

    def settings_of(self, number: int) -> TopicSettings:
        """Return what holds for the topic of a number."""
        return self._settings[number]

    def configure(self, name: str, settings: TopicSettings) -> int:
        """Set what holds for a topic, and return its number."""
        number = self.number(name)
        self._settings[number] = settings
        self._note(number, settings)
        return number

    def forget_ready(self) -> None:
        """Forget what can be taken, before it is worked out anew."""
        self.ready = [Runs() for _ in self.names]

    def _note(self, number: int, settings: TopicSettings) -> None:
        if number >= len(self.lease_ms):
            for name in ("lease_ms", "max_attempts", "remember_ms"):
                setattr(self, name, np.concatenate([getattr(self, name)] * 2))
        self.lease_ms[number] = settings.lease_ms
        self.max_attempts[number] = settings.max_attempts
        self.remember_ms[number] = settings.remember_ms
