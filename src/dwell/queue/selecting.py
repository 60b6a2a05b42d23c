"""The verbs on messages that somebody selects: by state, due, key, headers, error and body.

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
    """What :class:`dwell.Queue` does to messages that somebody selects."""

    _searcher: Searcher

    async def find(
        self, topic: str, which: Which, *, state: States | None = None, limit: int = 1000
    ) -> Batch:
        """Return at most ``limit`` messages that match, state after state, each by due.

        ``which`` is a :func:`dwell.select`, or an expression of JMESPath over the body, decoded as
        JSON: ``city == 'Rome'``. A message matches when the answer is anything but false, null or
        empty; a body that is not JSON, or not of the kind that the expression is for, does not.
        Without a state those that are ready are looked at. Raises InvalidQuery.
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

        They are those of one state after another: delayed ones, when neither ``state`` nor
        ``which`` says more.
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

        ``which`` is as for :meth:`find`; a paused topic gives none. When the call is cancelled,
        what it had taken is given back. Raises InvalidQuery.
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
        """Forget messages that match and that nobody has taken, at most ``limit``.

        Without a state they are delayed, ready and dead ones. All are found before the first is
        cancelled: one that was taken meanwhile is ``leased``, one that no longer matches
        ``unknown``.
        ``dry_run`` counts them, and changes nothing.
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

        One of ``delay``, ``due`` and ``shift`` has to be given: each falls due so much later than
        it would have, with ``-30m`` earlier. Without a state they are delayed and ready ones. All
        are found before the first is moved: one that was taken meanwhile is ``leased``, one that no
        longer matches ``unknown``. ``dry_run`` counts them, and changes nothing.
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
        """Bring dead messages that match back, due after ``delay``, attempts anew: ``kicked``.

        They are ``limit`` at most. With a ``pace`` so many fall due in each second from then on.
        All are found before the first is kicked: one that no longer matches is ``unknown``.
        ``dry_run`` counts them, and changes nothing.
        """
        how = changes.kick(values.delay_ms(delay), selecting.pace(pace))
        return await self._change(topic, which, how, limit, dry_run)

    def _look(self, topic: str, given: Selection) -> Look:
        """Return what looks at messages of one state: some of those that match, from a place on."""
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
