"""What a session chooses for itself: the tube it uses, and those it watches."""

from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.documents import tube_list
from dwell.server.beanstalk.replies import BAD_FORMAT, NOT_IGNORED, OUT_OF_MEMORY, using, watching
from dwell.server.beanstalk.session import Session
from dwell.server.beanstalk.tubes import topic_of

#: How many tubes one connection may watch.
MOST_WATCHED = 1000


def use(session: Session, run: Run) -> bytes:
    """Put jobs into another tube from now on."""
    tube = run.items[0]
    topic = topic_of(tube)
    if topic is None:
        return BAD_FORMAT
    session.tube, session.topic = tube, topic
    return using(tube)


def watch(session: Session, run: Run) -> bytes:
    """Reserve jobs of one more tube."""
    tube = run.items[0]
    topic = topic_of(tube)
    if topic is None:
        return BAD_FORMAT
    if len(session.watched) >= MOST_WATCHED and tube not in session.watched:
        return OUT_OF_MEMORY
    session.watched[tube] = topic
    return watching(len(session.watched))


def ignore(session: Session, run: Run) -> bytes:
    """Reserve no more jobs of a tube, unless it is the last one."""
    tube = run.items[0]
    if tube in session.watched:
        if len(session.watched) == 1:
            return NOT_IGNORED
        del session.watched[tube]
    return watching(len(session.watched))


def used(session: Session, run: Run) -> bytes:
    """Name the tube that is used."""
    return using(session.tube)


def watched(session: Session, run: Run) -> bytes:
    """List the tubes that are watched."""
    return tube_list(session.watched)


def refused(session: Session, run: Run) -> bytes:
    """Say what is wrong with commands that could not be read."""
    return b"".join(run.items)


def leave(session: Session, run: Run) -> None:
    """End the connection."""
    session.leave()


#: The commands that are answered at once.
CHOICES = {
    Verb.USE: use,
    Verb.WATCH: watch,
    Verb.IGNORE: ignore,
    Verb.LIST_TUBE_USED: used,
    Verb.LIST_TUBES_WATCHED: watched,
    Verb.REFUSED: refused,
    Verb.QUIT: leave,
}
