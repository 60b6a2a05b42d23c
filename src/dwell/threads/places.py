"""The stores that a process has open, each opened once, whichever thread asks first."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from dwell.errors import StoreError

T = TypeVar("T")


class Place(Generic[T]):
    """The place of one open store; its value is None while the store is not open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None
        #: How often opening it has failed, and why the last time.
        self._failures = 0
        self._error = StoreError("no store was opened yet")

    @contextmanager
    def opened(self, make: Callable[[], T]) -> Iterator[T]:
        """Yield the value, made if there is none, with the lock held; raises what ``make`` raises.

        All threads that wait for a store get the StoreError of the same try.
        """
        failures = self._failures
        with self.lock:
            if self.value is None:
                if self._failures != failures:
                    raise self._error
                try:
                    self.value = make()
                except StoreError as error:
                    self._failures, self._error = self._failures + 1, error
                    raise
            yield self.value


class Places(Generic[T]):
    """The places by URL and options; a process that was forked begins without any.

    A store that is away holds up its own users alone.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], Place[T]] = {}

    def of(self, url: str, options: dict[str, Any]) -> Place[T]:
        """Return the place of a store."""
        with self._lock:
            return self._places.setdefault((url, repr(sorted(options.items()))), Place())
