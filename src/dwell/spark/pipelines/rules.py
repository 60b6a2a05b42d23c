"""The table of transitions, applied to two successive events of one message."""

from dwell.message import TRANSITIONS, Kind, State

#: The kind before the first event of a message.
NONE = 0

#: The base for writing two codes of kinds as one number.
BASE = 256

# Arrows without an event: a delayed message whose due comes is ready without an event.
_SILENT = {(t.before, t.after) for t in TRANSITIONS if t.event is None and t.before != t.after}


def state_after(kind: int) -> State:
    """Return the state of a message after an event."""
    if kind == NONE:
        return State.GONE
    (state,) = {t.after for t in TRANSITIONS if t.event == kind}
    return state


def may_follow(kind: int, prior: int) -> bool:
    """Tell whether a message can have an event after another."""
    state = state_after(prior)
    states = {state, *(after for before, after in _SILENT if before == state)}
    return any(t.event == kind and t.before in states for t in TRANSITIONS)


def pair(prior: int, kind: int) -> int:
    """Return two codes as one number."""
    return prior * BASE + kind


def lawful_pairs(*, from_start: bool) -> list[int]:
    """Return the valid pairs of successive events.

    Without ``from_start``, the first known event of a message may be any.
    """
    pairs = [pair(p, k) for p in (NONE, *Kind) for k in Kind if may_follow(k, p)]
    return pairs if from_start else [*pairs, *(pair(NONE, k) for k in Kind if k != Kind.PUT)]


def kinds_into(*states: State) -> list[int]:
    """Return the kinds of events that leave a message in one of some states."""
    return [int(kind) for kind in Kind if state_after(kind) in states]


def why_again(prior: int) -> str:
    """Return why a message is delivered again: the end of the previous delivery."""
    return {
        Kind.RELEASE: "retry: its taker gave it back",
        Kind.LAPSE: "its lease ended",
        Kind.KICK: "it was dead, and was kicked",
    }.get(Kind(prior) if prior else Kind.PUT, "taken before the books begin")


def why_not(kind: int, prior: int) -> str:
    """Return what is wrong with an event that cannot follow the previous event."""
    name = str(Kind(kind)) if kind else "unknown event"
    if prior == NONE:
        return f"{name} of a message that was never put"
    return f"{name} after {Kind(prior)}, when it was {state_after(prior).name.lower()}"


def why_miscounted(kind: int, attempt: int, prior: int, prior_attempt: int | None) -> str:
    """Return what is wrong with the attempt of an event in a valid pair."""
    if prior == NONE:
        return f"{Kind(kind)} with attempt {attempt}"
    return f"{Kind(kind)} with attempt {attempt} after {Kind(prior)} with attempt {prior_attempt}"
