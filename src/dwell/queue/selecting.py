"""The verbs on selected messages: by state, due, key, headers, error and body.

``which`` is a :func:`dwell.select`, or only an expression over the body.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TypeAlias

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.page import Page
from dwell.batch.selection import ALL, Selection
from dwell.errors import InvalidTime
from dwell.given import selecting, values
from dwell.given.values import Delay, Due
from dwell.message import MAX_CHANGE_MESSAGES, State
from dwell.queue import changes
from dwell.queue.changes import Change
from dwell.queue.searcher import Look, Searcher
from dwell.queue.verbs import Verbs

#: A selection, or an expression of JMESPath over the body.
Which: TypeAlias = Selection | str

#: One state, or many.
States: TypeAlias = State | str | Sequence[State | str]


class Selecting(Verbs):
    """The methods of :class:`dwell.Queue` that act on selected messages."""

    _searcher: Searcher

    async def find(
        self, topic: str, which: Which, *, state: States | None = None, limit: int = 1000
    ) -> Batch:
        """Return at most ``limit`` messages that match, state after state, each by due.

        ``which`` is a :func:`dwell.select`, or a JMESPath expression over the body, decoded as
        JSON: ``city == 'Rome'``. A message matches if the result is not false, null or empty. A
        body that is not JSON, or of the wrong type for the expression, does not match. Without a
        state, ready messages are searched. Raises InvalidQuery.
        """
        topic, limit = values.topic(topic), values.limit(limit)
        given = selecting.narrowed(selecting.selection(which), state, (State.READY,))
        self.check_open()
        look, found, missing = self._look(topic, given), list[Batch](), limit
        for one in given.states or ():
            page = Page(Batch.empty(), None)
            while missing:
                page = await look(one, page.cursor, missing)
                found.append(page.messages)
                missing -= len(page.messages)
                if page.cursor is None:
                    break
        return Batch.joined(found, receipts=False)

    async def pages(
        self,
        topic: str,
        state: States | None = None,
        *,
        which: Which | None = None,
        limit: int = 1000,
    ) -> AsyncIterator[Batch]:
        """Yield all of a topic's messages that match, by due, at most ``limit`` at a time.

        The states follow one another. Without a ``state``, or states in ``which``, delayed messages
        are yielded.
        """
        topic, limit = values.topic(topic), values.limit(limit)
        given = ALL if which is None else selecting.selection(which)
        given = selecting.narrowed(given, state, (State.DELAYED,))
        self.check_open()
        look = self._look(topic, given)
        for one in given.states or ():
            page = await look(one, None, limit)
            while True:
                if len(page.messages):
                    yield page.messages
                if page.cursor is None:
                    break
                page = await look(one, page.cursor, limit)

    async def take_where(
        self,
        topic: str,
        which: Which,
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
    ) -> Batch:
        """Take at most ``limit`` ready messages that match, by due, without waiting.

        ``which`` is as for :meth:`find`; a paused topic gives none. If the call is cancelled, it
        releases the messages that it had taken. Raises InvalidQuery.
        """
        topic, limit = values.topic(topic), values.limit(limit)
        given = selecting.only_ready(selecting.selection(which))
        lease_ms, owner = values.lease_ms(lease), values.owner(owner)
        self.check_open()
        return await self._searcher.take_where(topic, given, limit, lease_ms, owner)

    async def cancel_where(
        self,
        topic: str,
        which: Which,
        *,
        limit: int = MAX_CHANGE_MESSAGES,
        dry_run: bool = False,
    ) -> Changed:
        """Cancel matching messages that are not leased, at most ``limit``.

        Without a state, delayed, ready and dead messages match. All are found before the first is
        cancelled: a message that was taken in between is ``leased``, a message that no longer
        matches is ``unknown``. ``dry_run`` counts them, and changes nothing.
        """
        return await self._change(topic, which, changes.cancel(), limit, dry_run)

    async def reschedule_where(
        self,
        topic: str,
        which: Which,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        shift: Delay | None = None,
        limit: int = MAX_CHANGE_MESSAGES,
        dry_run: bool = False,
    ) -> Changed:
        """Change when messages that match fall due, at most ``limit``.

        Either ``delay``, ``due`` or ``shift`` is required; ``shift`` moves each due later by that
        span, or earlier with ``-30m``. Without a state, delayed and ready messages match. All are
        found before the first is moved: a message that was taken in between is ``leased``, a
        message that no longer matches is ``unknown``. ``dry_run`` counts them, and changes nothing.
        """
        given = [
            name for name, v in (("delay", delay), ("due", due), ("shift", shift)) if v is not None
        ]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise InvalidTime(f"due: got {said}, expected one of delay, due and shift")
        if shift is not None:
            how = changes.shift(selecting.shift_ms(shift))
        else:
            how = changes.move(int(self._dues(delay, due, 1)[0]))
        return await self._change(topic, which, how, limit, dry_run)

    async def kick_where(
        self,
        topic: str,
        which: Which,
        *,
        delay: Delay = 0,
        pace: int | None = None,
        limit: int = MAX_CHANGE_MESSAGES,
        dry_run: bool = False,
    ) -> Changed:
        """Bring matching dead messages back, due after ``delay``, with 0 attempts: ``kicked``.

        At most ``limit`` are kicked. With a ``pace``, at most that many fall due in each second.
        All are found before the first is kicked: a message that no longer matches is ``unknown``.
        ``dry_run`` counts them, and changes nothing.
        """
        how = changes.kick(values.delay_ms(delay), selecting.pace(pace))
        return await self._change(topic, which, how, limit, dry_run)

    def _look(self, topic: str, given: Selection) -> Look:
        """Return a function that finds matching messages of one state, from a cursor on."""
        if given == Selection(states=given.states):
            return partial(self._store.scan, topic)
        return self._searcher.look(topic, given)

    async def _change(
        self, topic: str, which: Which, how: Change, limit: int, dry_run: bool
    ) -> Changed:
        topic, limit = values.topic(topic), selecting.change_limit(limit)
        given = selecting.selection(which)
        self.check_open()
        return await self._searcher.change(topic, given, how, limit, bool(dry_run))
