"""Schedules that the code of an app declares: put by workers, removed when no worker declares them.

Each version of an app's code has a record, which its workers renew. So a worker knows the
declarations of other running workers, and the newest code. See
docs/design/37-declared-schedules.md.
"""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from dwell.errors import (
    AccessDenied,
    DwellError,
    InvalidInput,
    InvalidSchedule,
    StoreClosed,
    StoreDamaged,
)
from dwell.given.selecting import select
from dwell.given.values import Millis
from dwell.message import Message, Result, State
from dwell.queue import Queue
from dwell.queue.schedules.changing import Changing, next_after
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.queue.schedules.schedule import Schedule
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.schedules.words import made

_log = logging.getLogger(__name__)

#: The topic of the records. Rights are prefixes, so the right to change schedules covers it.
TOPIC = f"{SCHEDULES}:declared"

#: A record is valid for this many beats of the worker that renews it.
_VALID_BEATS = 5
#: A worker waits this many beats before it removes a schedule that no code declares, or, unless its
#: code is the newest, puts back a schedule that newer code does not declare.
_PATIENT_BEATS = 5
#: How long a record that is not renewed still tells which code is older.
_FORGOTTEN_MS = 24 * 3_600_000
#: How long a beat waits for a schedule that fires; the next beat tries again.
_PATIENCE_S = 5.0
#: The greatest difference between the clocks of workers.
_SLACK_MS = 5_000
#: The states of a record, each searched twice: a record that is renewed or falls due during the
#: search may move to a state that was searched already.
_STATES = (State.LEASED, State.READY, State.DELAYED) * 2


@dataclass(frozen=True)
class Declared:
    """One schedule of a worker: ``words`` are the further arguments of :meth:`Schedules.put`."""

    name: str
    topic: str
    body: object
    words: dict[str, Any] = field(default_factory=dict)


#: Options of a schedule that the decorator passes on.
_WORDS = [
    name
    for name, parameter in inspect.signature(Schedules.put).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("cron", "every", "rrule", "app")
]


def check_words(words: Iterable[str]) -> None:
    """Refuse options that a schedule does not have; raises InvalidInput."""
    if unknown := sorted(set(words) - set(_WORDS)):
        raise InvalidInput(f"every: got {unknown[0]!r}, expected one of {', '.join(_WORDS)}")


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one version of an app's code, with its declarations.

    Code that was first seen later has a higher ``generation``. The record is valid until it falls
    due, at most ``valid_ms`` from now.
    """

    app: str
    generation: int
    valid_ms: int
    names: list[str]


class Known(msgspec.Struct, frozen=True):
    """The content of an app's records: all of its code by id, and the ids of the running code."""

    codes: dict[str, Code]
    running: set[str]

    def declared(self) -> set[str]:
        """Return the names that running code declares."""
        return {name for id_ in self.running for name in self.codes[id_].names}

    def newer(self, id_: str) -> list[Code]:
        """Return running code that is newer than one version."""
        own = (self.codes[id_].generation, id_)
        return [self.codes[i] for i in self.running if (self.codes[i].generation, i) > own]


class Declaring:
    """Keeps the schedules of one worker declared."""

    def __init__(self, queue: Queue, app: str, declared: Sequence[Declared], keep_ms: int) -> None:
        self._queue, self._app = queue, app
        self._changing = Changing(queue, patience_s=_PATIENCE_S)
        self._beat_ms = max(keep_ms // (_VALID_BEATS + _PATIENT_BEATS), 1)
        self._keep_ms = keep_ms
        now_ms = queue.clock.now_ms()
        self._schedules = [
            made(one.name, one.topic, one.body, one.words, now_ms, app) for one in declared
        ]
        self._id = _digest(app, self._schedules)
        self._valid_until_ms = 0
        self._valid_ms = self._beat_ms * _VALID_BEATS
        self._generation = 0
        self._beats = 0
        self._put = set[str]()
        self._present = set[str]()
        self._undeclared: dict[str, int] = {}
        self._told = set[str]()
        self._has_begun = False
        #: Whether the first try is over, and what it has ended :meth:`run` by.
        self.was_tried = asyncio.Event()
        self.has_failed = asyncio.Event()
        self._mistake: DwellError | None = None

    async def start(self) -> None:
        """Declare and put the schedules.

        Raises InvalidSchedule if a schedule cannot be read, or if its name belongs to another app;
        then nothing is put. A name that belongs to no code is left out with a warning: somebody
        has put it by hand, and the code is as it was when it last started.
        """
        for schedule in self._schedules:
            await asyncio.to_thread(getattr, schedule, "times")
            found = await self._existing(schedule.name)
            if found is not None and found.app:
                self._check_owner(schedule, found)
        self._present = {p.schedule.name async for p in self._queue.schedules.each(self._app)}
        await self.beat()

    async def run(self) -> None:
        """Declare the schedules, and renew that until it is cancelled or the queue is closed.

        What the queue refuses is tried again at the next beat: a store that is full or drains may
        have room when the worker has handled its messages. A first try that finds a mistake, of the
        code or of its rights, is the last: ``has_failed`` is set, and :meth:`check` raises it.
        """
        while await self._goes_on():
            self.was_tried.set()
            await self._queue.clock.sleep(self._beat_ms)
        self.was_tried.set()

    def check(self) -> None:
        """Raise the mistake that has ended :meth:`run`, if there is one."""
        if self._mistake is not None:
            raise self._mistake

    async def _goes_on(self) -> bool:
        """Start, or renew the declaration; False if there is no sense in another try."""
        try:
            if not self._has_begun:
                await self.start()
                self._has_begun = True
            else:
                await self.beat()
        except StoreClosed:
            return False
        except DwellError as error:
            if isinstance(error, InvalidInput | AccessDenied) and not self.was_tried.is_set():
                self._mistake = error
                self.has_failed.set()
                return False
            _log.warning("schedules of %s could not be declared: %s", self._app, error)
        except Exception:
            _log.exception("schedules of %s could not be declared", self._app)
        return True

    async def beat(self) -> None:
        """Renew the record, put this code's schedules, and remove undeclared schedules."""
        await self._renew()
        known = await self._known()
        if self._id not in known.codes:
            # It was moved without a look at it: it is damaged, or was taken away since.
            known = await self._write(known)
        self._generation = known.codes[self._id].generation
        newer = known.newer(self._id)
        theirs = {name for code in newer for name in code.names}
        self._put -= theirs
        for schedule in self._schedules:
            if schedule.name not in theirs | self._put:
                await self._declare(schedule, is_newest=not newer)
        await self._remove_undeclared(known)
        self._beats += 1

    # --- records ------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Extend the record of this code from now on."""
        now_ms = self._queue.clock.now_ms()
        if now_ms > self._valid_until_ms:
            # Other workers may have removed the schedules when the record had ended.
            self._put.clear()
        due = Millis(self._valid_ms)
        if await self._queue.reschedule(TOPIC, self._id, delay=due) is not Result.MOVED:
            await self._write(await self._known())
        self._valid_until_ms = now_ms + self._valid_ms

    async def _write(self, known: Known) -> Known:
        """Write the record of this code; return the content of the records afterwards.

        Code that has run before keeps its generation, however late it is: it became no newer.
        """
        own, codes = known.codes.get(self._id), known.codes.values()
        last = max((code.generation for code in codes), default=0)
        code = Code(
            app=self._app,
            generation=own.generation if own is not None else self._generation or last + 1,
            valid_ms=self._valid_ms,
            names=[schedule.name for schedule in self._schedules],
        )
        body, due = msgspec.json.encode(code), Millis(self._valid_ms)
        await self._queue.put(TOPIC, body, id=self._id, delay=due, on_conflict="replace")
        self._put.clear()
        return Known({**known.codes, self._id: code}, known.running | {self._id})

    async def _known(self) -> Known:
        """Return the content of the records; a record that cannot be read is left out."""
        now_ms = self._queue.clock.now_ms()
        known, is_any_forgotten = Known({}, set()), False
        for state in _STATES:
            async for batch in self._queue.pages(TOPIC, state):
                for message in batch:
                    code = self._code(message)
                    if message.due_ms < now_ms - _FORGOTTEN_MS:
                        is_any_forgotten = True
                    elif code is not None and code.app == self._app:
                        known.codes[message.id] = code
                        # A clock that is ahead writes a due that is too far away.
                        if now_ms <= message.due_ms <= now_ms + code.valid_ms + _SLACK_MS:
                            known.running.add(message.id)
        if is_any_forgotten:
            old = select(state=State.READY, due_to=now_ms - _FORGOTTEN_MS)
            await self._queue.cancel_where(TOPIC, old)
        return known

    def _code(self, message: Message) -> Code | None:
        try:
            return msgspec.json.decode(message.body, type=Code)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._tell(f"record {message.id} in {TOPIC} is left out: {error}")
            return None

    # --- schedules ----------------------------------------------------------------------------

    async def _existing(self, name: str) -> Schedule | None:
        try:
            found = await self._queue.schedules.get(name)
        except (InvalidSchedule, StoreDamaged):
            # Newer code or a person has put it, or it is damaged: it is replaced.
            return None
        return None if found is None else found.schedule

    def _check_owner(self, schedule: Schedule, found: Schedule | None) -> None:
        if found is not None and found.app != self._app:
            owner = found.app or "nobody's code"
            raise InvalidSchedule(
                f"schedule {schedule.name}: belongs to {owner}, expected {self._app} or no such "
                "schedule"
            )

    async def _declare(self, schedule: Schedule, *, is_newest: bool) -> None:
        """Put a schedule that no newer code declares."""
        name, found = schedule.name, await self._existing(schedule.name)
        if found is None and not is_newest and self._beats < _PATIENT_BEATS:
            self._tell(
                f"schedule {name}: not put yet, as newer code of {self._app} runs without it"
            )
            return
        try:
            self._check_owner(schedule, found)
            await self._put_or_end(schedule, is_there=found is not None)
        except StoreClosed:
            raise
        except DwellError as error:
            # The worker starts, and its other schedules are put; the next beat tries again.
            self._tell(f"schedule {name} was not put: {error}")
            return
        self._put.add(name)

    async def _put_or_end(self, schedule: Schedule, *, is_there: bool) -> None:
        """Put a schedule, or remove it if it has fired for the last time."""
        name, now_ms = schedule.name, self._queue.clock.now_ms()
        if await next_after(schedule, now_ms) is None:
            self._tell(f"schedule {name}: not put, as it fires no more from now on")
            if is_there:
                await self._changing.remove(name)
            return
        # A worker that is about to remove it sees the change, and reads the records again.
        check = partial(self._check_owner, schedule)
        await self._changing.put(schedule, anew=True, check=check)

    async def _remove_undeclared(self, known: Known) -> None:
        """Remove the schedules of the app that no running code has declared for some time."""
        names = self._present.union(*(code.names for code in known.codes.values()))
        undeclared = names - known.declared()
        self._undeclared = {name: self._undeclared.get(name, 0) for name in undeclared}
        for name in undeclared:
            if self._undeclared[name] != _PATIENT_BEATS or await self._remove(name):
                self._undeclared[name] += 1

    async def _remove(self, name: str) -> bool:
        """Remove a schedule that no running code declares; return False to try again."""

        async def may() -> bool:
            found = await self._existing(name)
            is_ours = found is not None and found.app == self._app
            return is_ours and name not in (await self._known()).declared()

        try:
            result = await self._changing.remove(name, may)
        except StoreClosed:
            raise
        except DwellError as error:
            self._tell(f"schedule {name} was not removed: {error}")
            return False
        if result is Result.CANCELLED:
            _log.warning(
                "schedule %s: removed, as no running worker of %s has declared it for %g s",
                name,
                self._app,
                self._keep_ms / 1000,
            )
        return True

    def _tell(self, problem: str) -> None:
        """Log a problem once."""
        if problem not in self._told:
            self._told.add(problem)
            _log.warning("%s", problem)


def _digest(app: str, schedules: Sequence[Schedule]) -> str:
    """Return the id of the record of code that declares some schedules."""
    told = msgspec.json.encode((app, sorted(schedules, key=lambda schedule: schedule.name)))
    return hashlib.sha256(told).hexdigest()[:32]
