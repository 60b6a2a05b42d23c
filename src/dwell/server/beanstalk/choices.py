"""The choices of a session: the tube it uses, and the tubes it watches.

A session cannot choose a tube without a right to it: others would see it in the list of tubes.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.documents import tube_list
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.replies import (
    BAD_FORMAT,
    NOT_IGNORED,
    OUT_OF_MEMORY,
    UNKNOWN_COMMAND,
    using,
    watching,
)
from dwell.server.beanstalk.session import Session
from dwell.server.beanstalk.tubes import topic_of

#: How many tubes one connection may watch.
MOST_WATCHED = 1000

Start: TypeAlias = Callable[[Session, Run], bytes | None]


def choices(hall: Hall) -> dict[Verb, Start]:
    """Return the commands that are answered at once."""
    shared = {Verb.USE: use, Verb.WATCH: watch, Verb.IGNORE: ignore}
    return {**_CHOICES, **{verb: partial(choose, hall) for verb, choose in shared.items()}}


def use(hall: Hall, session: Session, run: Run) -> bytes:
    """Put jobs into another tube from now on."""
    tube = run.items[0]
    topic = topic_of(tube)
    if topic is None:
        return BAD_FORMAT
    # A tube is also used to look into it, and to kick its jobs.
    if not hall.may(Verb.USE, topic):
        return UNKNOWN_COMMAND
    hall.chosen.add(tube)
    hall.chosen.drop(session.tube)
    session.tube, session.topic = tube, topic
    hall.order.note(tube)
    return using(tube)


def watch(hall: Hall, session: Session, run: Run) -> bytes:
    """Reserve jobs of one more tube."""
    tube = run.items[0]
    topic = topic_of(tube)
    if topic is None:
        return BAD_FORMAT
    if not hall.may(Verb.WATCH, topic):
        return UNKNOWN_COMMAND
    if tube not in session.watched:
        if len(session.watched) >= MOST_WATCHED or not hall.has_watched(tube):
            return OUT_OF_MEMORY
        session.watched[tube] = topic
    hall.order.note(tube)
    return watching(len(session.watched))


def ignore(hall: Hall, session: Session, run: Run) -> bytes:
    """Stop reserving jobs of a tube, unless it is the last watched tube."""
    tube = run.items[0]
    if tube in session.watched:
        if len(session.watched) == 1:
            return NOT_IGNORED
        del session.watched[tube]
        hall.has_ignored(tube)
    return watching(len(session.watched))


def used(session: Session, run: Run) -> bytes:
    """Name the tube that is used."""
    return using(session.tube)


def watched(session: Session, run: Run) -> bytes:
    """List the tubes that are watched."""
    return tube_list(session.watched)


def refused(session: Session, run: Run) -> bytes:
    """Reply to commands that could not be parsed."""
    return b"".join(run.items)


def leave(session: Session, run: Run) -> None:
    """End the connection."""
    session.leave()


_CHOICES: dict[Verb, Start] = {
    Verb.LIST_TUBE_USED: used,
    Verb.LIST_TUBES_WATCHED: watched,
    Verb.REFUSED: refused,
    Verb.QUIT: leave,
}
