"""Turns of keys, one message at a time and many."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dwell.store.embedded.turns import Turns as ManyTurns
from dwell.store.turns import Turns

KEYS = (3, -2, 2**62)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("next", "take", "leave", "give back")),
            st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        ),
        max_size=30,
    )
)
def test_many_at_once_have_the_same_turns(steps: list[tuple[str, list[int]]]) -> None:
    """Whether messages become ready, leave and give back singly or together."""
    one: Turns[int] = Turns()
    many = ManyTurns()
    ready: list[tuple[int, int]] = []
    for verb, keys in steps:
        if verb == "next":
            turns = [one.next((key,), (1,))[0] for key in keys]
            assert many.next(np.array(keys, np.int64)).tolist() == turns
            ready += zip(turns, keys, strict=True)
            continue
        ready.sort()
        leaving, ready = ready[: len(keys)], ready[len(keys) :]
        if not leaving:
            continue
        if verb == "take":
            one.take(leaving[-1][0], len(leaving))
            many.take(leaving[-1][0], len(leaving))
        elif verb == "leave":
            one.leave(len(leaving))
            many.leave(len(leaving))
        else:
            for _, key in leaving:
                one.give_back((key,), (1,))
            many.give_back(np.array([key for _, key in leaving], np.int64))


def test_a_flood_does_not_move_the_turn_of_others() -> None:
    turns: Turns[str] = Turns()
    assert turns.next(["a", "b"], [1_000, 1]) == [0, 0]
    turns.take(0)
    assert turns.next(["c"], [1]) == [0]
    turns.take(5)
    assert turns.next(["b", "c", "d"], [1, 1, 1]) == [5, 5, 5]


def test_turns_come_by_themselves() -> None:
    """As many takes as were ready let the next turn come."""
    turns: Turns[str] = Turns()
    turns.next(["a", "x"], [2, 1])
    for number in range(3):
        turns.take(0)
        assert turns.next([f"{number}"], [1]) == [1 if number == 2 else 0]


def test_nobody_ready_is_forgotten() -> None:
    turns: Turns[str] = Turns()
    turns.next(["a"], [9])
    turns.take(0)
    turns.give_back(["a"], [7])
    assert turns.next(["a"], [1]) == [2]
    turns.leave(2)
    assert turns.next(["a", "b"], [1, 1]) == [0, 0]
