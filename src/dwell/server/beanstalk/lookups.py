"""Commands that are done one at a time: to look, to kick, to pause, to reserve a certain job."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dwell.batch.page import Cursor, Page
from dwell.batch.stats import TopicStats
from dwell.message import MAX_BATCH_MESSAGES, U64, Message, Result, State
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.beanstalk.commands import Pause, Run, Verb
from dwell.server.beanstalk.documents import (
    is_there,
    job_stats,
    server_stats,
    tube_list,
    tube_stats,
    tubes_of,
)
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.receipts import Receipts
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.replies import (
    KICKED,
    NOT_FOUND,
    OUT_OF_MEMORY,
    PAUSED,
    found,
    kicked,
    reserved,
)
from dwell.server.beanstalk.reserves import Reserves
from dwell.server.beanstalk.session import Session
from dwell.server.beanstalk.taken import Taken
from dwell.server.beanstalk.tubes import topic_of

_MAX_NUMBER = 2**63 - 1
#: How many commands look at a time: their replies, of a megabyte each, are sent in one turn.
_AT_ONCE = 4
#: Jobs with a priority below this one beanstalkd calls urgent.
_URGENT = 1024
#: In how many topics urgent jobs are counted for the document of the server.
_MOST_LOOKED_AT = 1000


class _Seen(NamedTuple):
    """A message, and the version that it had before it was read, one number in an array.

    A change with this version fails if the message has changed since. The version is None if the
    store has no versions.
    """

    message: Message
    versions: U64 | None


class Lookups:
    """Does commands that need the queue, one at a time."""

    def __init__(self, hall: Hall, receipts: Receipts, reserves: Reserves) -> None:
        self._hall = hall
        self._receipts = receipts
        self._reserves = reserves
        self._queue = hall.service.queue
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._does: dict[Verb, Callable[[Session, Any], Awaitable[bytes]]] = {
            Verb.PEEK: self._peek,
            Verb.PEEK_READY: self._peek_ready,
            Verb.PEEK_DELAYED: partial(self._first, Verb.PEEK_DELAYED, State.DELAYED),
            Verb.PEEK_BURIED: partial(self._first, Verb.PEEK_BURIED, State.DEAD),
            Verb.KICK: self._kick,
            Verb.KICK_JOB: self._kick_job,
            Verb.RESERVE_JOB: self._reserve_job,
            Verb.STATS: self._stats,
            Verb.STATS_JOB: self._stats_job,
            Verb.STATS_TUBE: self._stats_tube,
            Verb.LIST_TUBES: self._list_tubes,
            Verb.PAUSE_TUBE: self._pause,
        }

    @property
    def verbs(self) -> frozenset[Verb]:
        """The verbs of these commands."""
        return frozenset(self._does)

    def start(self, session: Session, run: Run) -> None:
        """Do one command."""
        self._hall.spawn(self._do(session, run))

    async def _do(self, session: Session, run: Run) -> None:
        try:
            async with self._turns:
                # Replies that are not read count as in flight.
                self._hall.in_flight.enter(0, 0)
                reply = await self._does[run.verb](session, run.items[0])
        except Exception as error:
            reply = word_of(error)
        session.answer(reply)

    # --- looking --------------------------------------------------------------------------------

    async def _name(self, number: int, verb: Verb) -> tuple[str, str] | None:
        """Return topic and id of a number, if the caller may give a command that concerns it.

        To others it is not there: numbers are easily guessed.
        """
        if not 0 < number <= _MAX_NUMBER:
            return None
        name = (await self._queue.named([number]))[0]
        return name if name is not None and self._hall.may(verb, name[0]) else None

    async def _message(self, number: int, verb: Verb) -> Message | None:
        """Return the message of a number, if the caller may give a command that concerns it."""
        name = await self._name(number, verb)
        return None if name is None else await self._named(number, *name)

    async def _named(self, number: int, topic: str, id_: str) -> Message | None:
        message = await self._queue.get(topic, id_)
        # Another may have been put with the id since.
        return message if message is not None and message.number == number else None

    async def _seen(self, number: int, verb: Verb) -> _Seen | None:
        """Return the message of a number with its version, to change it as it was seen.

        The version is read first: the version of a message that changes between the two reads is
        an old one, so the change fails.
        """
        name = await self._name(number, verb)
        if name is None:
            return None
        versions = await self._versions(number)
        message = await self._named(number, *name)
        return None if message is None else _Seen(message, versions)

    async def _versions(self, number: int) -> U64 | None:
        return await self._queue.store.versions(np.array([number], np.uint64))

    async def _peek(self, session: Session, number: int) -> bytes:
        message = await self._message(number, Verb.PEEK)
        return NOT_FOUND if message is None else found(number, message.body)

    async def _peek_ready(self, session: Session, item: None) -> bytes:
        self._hall.allow(Verb.PEEK_READY, (session.topic,))
        batch = await self._queue.peek(session.topic)
        return found(int(batch.numbers[0]), batch.bodies[0]) if len(batch) else NOT_FOUND

    async def _first(self, verb: Verb, state: State, session: Session, item: None) -> bytes:
        """Show the message of a state that is or was due first."""
        self._hall.allow(verb, (session.topic,))
        # A page is empty where its message is damaged.
        async for batch in self._queue.pages(session.topic, state, limit=1):
            if len(batch):
                return found(int(batch.numbers[0]), batch.bodies[0])
        return NOT_FOUND

    async def _stats(self, session: Session, item: None) -> bytes:
        self._hall.allow(Verb.STATS, None)
        stats = await self._queue.stats()
        ready = [topic for topic, counts in stats.topics.items() if counts.ready]
        urgent = list[int]()
        for topic in ready[:_MOST_LOOKED_AT]:
            urgent.append(await self._urgent(topic))
            # Some stores count in one turn, and these are many.
            await asyncio.sleep(0)
        tubes = await tubes_of(self._hall, stats)
        return server_stats(self._hall, stats, sum(urgent), len(tubes))

    async def _urgent(self, topic: str) -> int:
        """Return how many jobs beanstalkd would call urgent, which means nothing here."""
        return await self._queue.count_urgent(topic, _URGENT)

    async def _stats_job(self, session: Session, number: int) -> bytes:
        message = await self._message(number, Verb.STATS_JOB)
        if message is None:
            return NOT_FOUND
        return job_stats(message, self._hall.histories, self._hall.now_ms)

    async def _stats_tube(self, session: Session, tube: str) -> bytes:
        found = await self._tube(tube, Verb.STATS_TUBE)
        if found is None:
            return NOT_FOUND
        topic, counts = found
        return tube_stats(self._hall, tube, topic, counts, await self._urgent(topic))

    async def _tube(self, tube: str, verb: Verb) -> tuple[str, TopicStats] | None:
        """Return the topic of a tube that there is, if the caller may give a command for it."""
        topic = topic_of(tube)
        if topic is None or not self._hall.may(verb, topic):
            return None
        counts = (await self._queue.stats()).topics.get(topic, TopicStats())
        return (topic, counts) if is_there(self._hall, tube, counts) else None

    async def _list_tubes(self, session: Session, item: None) -> bytes:
        self._hall.allow(Verb.LIST_TUBES, None)
        return tube_list(await tubes_of(self._hall, await self._queue.stats()))

    # --- kicking --------------------------------------------------------------------------------

    async def _kick(self, session: Session, bound: int) -> bytes:
        """Kick buried jobs, or delayed jobs if no job is buried."""
        count = await self._kick_all(session.topic, State.DEAD, bound, self._kick_dead)
        if not count:
            count = await self._kick_all(session.topic, State.DELAYED, bound, self._kick_delayed)
        return kicked(count)

    async def _kick_all(
        self, topic: str, state: State, bound: int, some: Callable[[str, Page], Awaitable[int]]
    ) -> int:
        """Kick jobs of a state page by page, up to the bound or the last job."""
        count = 0
        cursor: Cursor | None = None
        while count < bound:
            # Many jobs take a while, and the right may end.
            self._hall.allow(Verb.KICK, (topic,))
            limit = min(bound - count, MAX_BATCH_MESSAGES)
            page = await self._queue.scan(topic, state, cursor=cursor, limit=limit)
            if len(page.messages):
                count += await some(topic, page)
            cursor = page.cursor
            if cursor is None:
                break
        return count

    async def _kick_dead(self, topic: str, page: Page) -> int:
        batch = page.messages
        codes = (await self._queue.kick(topic, batch.ids, versions=page.versions)).codes
        done = codes == Result.KICKED
        numbers, attempts = batch.numbers[done].tolist(), batch.attempt[done].tolist()
        for number, attempt in zip(numbers, attempts, strict=True):
            self._hall.histories.begun_anew(number, attempt, is_kick=True)
        return len(numbers)

    async def _kick_delayed(self, topic: str, page: Page) -> int:
        ids, versions = page.messages.ids, page.versions
        codes = (await self._queue.reschedule(topic, ids, delay=0, versions=versions)).codes
        numbers = page.messages.numbers[codes == Result.MOVED].tolist()
        for number in numbers:
            self._hall.histories.kicked(number)
        return len(numbers)

    async def _kick_job(self, session: Session, number: int) -> bytes:
        seen = await self._seen(number, Verb.KICK_JOB)
        if seen is None or not await self._made_ready(seen, is_kick=True):
            return NOT_FOUND
        if seen.message.state is State.DELAYED:
            self._hall.histories.kicked(number)
        return KICKED

    async def _made_ready(self, seen: _Seen, *, is_kick: bool) -> bool:
        """Make a message ready that was seen buried or delayed; tell whether it was."""
        message, versions = seen
        ids = [message.id]
        if message.state is State.DEAD:
            kicked = await self._queue.kick(message.topic, ids, versions=versions)
            if kicked[0] is not Result.KICKED:
                return False
            self._hall.histories.begun_anew(message.number, message.attempt, is_kick=is_kick)
            return True
        if message.state is State.DELAYED:
            moved = await self._queue.reschedule(message.topic, ids, delay=0, versions=versions)
            return moved[0] is Result.MOVED
        return False

    # --- reserving and pausing ------------------------------------------------------------------

    async def _reserve_job(self, session: Session, number: int) -> bytes:
        seen = await self._seen(number, Verb.RESERVE_JOB)
        if seen is None or await self._is_held_back(seen.message):
            return NOT_FOUND
        session.is_worker = True
        message, versions = seen
        if message.state is not State.READY:
            if not await self._made_ready(seen, is_kick=False):
                return NOT_FOUND
            versions = await self._versions(number)
        batch = await self._queue.take_ids(message.topic, [message.id], versions=versions)
        taken = Taken.of([batch], [message.topic], self._hall.now_ms)
        if not len(taken):
            return NOT_FOUND
        self._hall.service.note_taken(batch)
        if message.topic == SCHEDULES:
            self._hall.note_schedules("reserve-job", taken.numbers)
        if session.is_over:
            self._receipts.give_back(taken.held)
            return b""
        session.hold(taken.numbers, taken.held, taken.now_ms)
        return reserved(taken.numbers, taken.bodies)

    async def _is_held_back(self, message: Message) -> bool:
        """Tell whether the settings of its topic may keep a message from being taken.

        The take itself checks them for a ready message. A delayed or buried message has to be made
        ready first, which cannot be undone: setting its due again overwrites a due that others set
        in between, and only a leased message can be buried. Whether a limit lets it be taken is not
        known before the take, so any limit holds it back.
        """
        if message.state is State.READY:
            return False
        settings = await self._queue.settings(message.topic)
        is_ordered = settings.ordered and message.key is not None
        return bool(settings.paused or settings.rate or settings.most_leased or is_ordered)

    async def _pause(self, session: Session, pause: Pause) -> bytes:
        found = await self._tube(pause.tube, Verb.PAUSE_TUBE)
        if found is None:
            return NOT_FOUND
        topic, _ = found
        if not self._hall.pauses.pause(topic, pause.delay_s):
            return OUT_OF_MEMORY
        self._hall.totals[topic].pauses += 1
        self._reserves.pause(topic)
        return PAUSED
