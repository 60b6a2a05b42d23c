"""Make docs/reference/states.md, the table of states, from the state machine itself.

``python -m tools.states_docs`` writes it anew from TRANSITIONS in src/dwell/message.py.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from dwell.message import TRANSITIONS, Kind, Result, State, Transition

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "states.md"

_HEAD = """<!-- Made by `python -m tools.states_docs` from src/dwell/message.py: change that. -->
# States

A message that was accepted is in exactly one state until it is gone.

```
            due comes            take                 ack
  delayed ------------> ready ---------> leased -------------> (gone, remembered for remember_ms)
     ^  ^                 ^                | | |
     |  | release(delay)  | release(0),    | | | bury, or attempts used up, or expired
     |  +-----------------+ lease ends <---+ | v
     |                                      | dead --- kick ---> ready / delayed
     +-- reschedule                         |
  cancel: delayed, ready, dead -> gone.   leased -> answered "leased": the taker has it
```

Where a row says that a message becomes `delayed` and its due has come, it is `ready` at once: what
distinguishes the two is only the clock.
"""

_STATES = {
    State.GONE: "There is no such message: it was never put, or it was acked or cancelled.",
    State.DELAYED: "It waits for its due.",
    State.READY: "Its due has come, and the next taker may have it.",
    State.LEASED: "A taker has it, until the lease ends.",
    State.DEAD: "It was set aside, and stays until it is kicked, cancelled or replaced.",
}

_RESULTS = {
    Result.CREATED: "The message was put.",
    Result.KEPT: "The id existed, or was acked less than `remember_ms` ago; nothing changed.",
    Result.REPLACED: "The id existed; the message starts anew with what the put says.",
    Result.DROPPED: "The topic is full and says `on_full=drop`; nothing was put.",
    Result.ACKED: "The message is done and forgotten.",
    Result.RELEASED: "The message was given back.",
    Result.TOUCHED: "The lease runs on.",
    Result.BURIED: "The message is dead: it was buried, or its attempts are used up.",
    Result.STALE: "The receipt is not good (any more); nothing changed.",
    Result.KICKED: "The message is back, with its attempts anew.",
    Result.CANCELLED: "The message is forgotten, and nobody will take it.",
    Result.MOVED: "The message has a new due.",
    Result.LEASED: "A taker has the message; nothing changed.",
    Result.UNKNOWN: "There is no such message in a state that the verb is for; nothing changed.",
}

_EVENTS = {
    Kind.PUT: "A message was created.",
    Kind.REPLACE: "A message was replaced.",
    Kind.TAKE: "A message was taken; `attempt` counts this take.",
    Kind.ACK: "A message is done.",
    Kind.RELEASE: "A message was given back.",
    Kind.LAPSE: "A lease ended, and the message came back.",
    Kind.EXHAUST: "A message came back for the last time that it may, and is dead.",
    Kind.EXPIRE: "A message was not taken by its `expires_ms`, and is dead.",
    Kind.BURY: "A message was set aside.",
    Kind.KICK: "A dead message was brought back.",
    Kind.CANCEL: "A message was forgotten before anybody took it.",
    Kind.MOVE: "A message was rescheduled.",
}


def _state(state: State) -> str:
    return f"`{state.name.lower()}`"


def _row(arrow: Transition) -> list[str]:
    answer = "" if arrow.result is None else f"`{arrow.result}`"
    event = "" if arrow.event is None else f"`{arrow.event}`"
    verb = arrow.verb if " " in arrow.verb or arrow.verb == "expires" else f"`{arrow.verb}`"
    return [verb, _state(arrow.before), _state(arrow.after), answer, event, arrow.note]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "| state | what it means |"
    yield "|---|---|"
    yield from (f"| {_state(state)} | {_STATES[state]} |" for state in State)
    yield "\n## Transitions\n"
    yield "`due comes`, `lease ends` and `expires` are what time does; all others are verbs. A verb"
    yield "on a state that is not listed changes nothing and answers `stale` (verbs by receipt) or"
    yield "`unknown` (verbs by id).\n"
    heads = ["verb", "before", "after", "answer", "event", "when, or what else"]
    yield from table(heads, map(_row, TRANSITIONS))
    yield "\n## Results\n"
    yield "The result of a verb for one message: `dwell.Result`, whose `str` is the word here.\n"
    yield from table(["result", "what it means"], ((f"`{r}`", _RESULTS[r]) for r in Result))
    yield "\n## Events\n"
    yield "The kinds of `events`: `dwell.Kind`. A touch is no event, and neither is a"
    yield "due that is reached.\n"
    yield from table(["event", "what happened"], ((f"`{k}`", _EVENTS[k]) for k in Kind))


def render() -> str:
    """Return what the page has to be."""
    return "\n".join(_lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
