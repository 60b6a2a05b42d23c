"""What the table of transitions says of two events of one message that follow each other."""

from dwell.message import TRANSITIONS, Kind, State

#: The kind before the first event of a message.
NONE = 0

#: The base in which two codes of kinds are written as one number.
BASE = 256

# Arrows without an event: a due that comes makes a delayed message ready, and nobody notes it.
_SILENT = {(t.before, t.after) for t in TRANSITIONS if t.event is None and t.before != t.after}


def state_after(kind: int) -> State:
    """Return the state in which an event leaves its message."""
    if kind == NONE:
        return State.GONE
    (state,) = {t.after for t in TRANSITIONS if t.event == kind}
    return state


def may_follow(kind: int, prior: int) -> bool:
    """Tell whether a message can have this event after that one."""
    state = state_after(prior)
    states = {state, *(after for before, after in _SILENT if before == state)}
    return any(t.event == kind and t.before in states for t in TRANSITIONS)


def pair(prior: int, kind: int) -> int:
    """Return two codes as one number."""
    return prior * BASE + kind


def lawful_pairs(*, from_start: bool) -> list[int]:
    """Return the pairs of events that can follow each other.

    Without ``from_start``, the first event that is known of a message may be any.
    """
    pairs = [pair(p, k) for p in (NONE, *Kind) for k in Kind if may_follow(k, p)]
    return pairs if from_start else [*pairs, *(pair(NONE, k) for k in Kind if k != Kind.PUT)]


def kinds_into(*states: State) -> list[int]:
    """Return the kinds of events that leave a message in one of some states."""
    return [int(kind) for kind in Kind if state_after(kind) in states]


def why_again(prior: int) -> str:
    """Say why a message is delivered again: what ended the delivery before."""
    return {
        Kind.RELEASE: "retry: its taker gave it back",
        Kind.LAPSE: "its lease ended",
        Kind.KICK: "it was dead, and was kicked",
    }.get(Kind(prior) if prior else Kind.PUT, "taken before the books begin")


def why_not(kind: int, prior: int) -> str:
    """Say what is wrong with an event that cannot follow the one before it."""
    name = str(Kind(kind)) if kind else "unknown event"
    if prior == NONE:
        return f"{name} of a message that was never put"
    return f"{name} after {Kind(prior)}, when it was {state_after(prior).name.lower()}"


def why_miscounted(kind: int, attempt: int, prior: int, prior_attempt: int | None) -> str:
    """Say what is wrong with the attempt of an event that can follow the one before it."""
    if prior == NONE:
        return f"{Kind(kind)} with attempt {attempt}"
    return f"{Kind(kind)} with attempt {attempt} after {Kind(prior)} with attempt {prior_attempt}"
