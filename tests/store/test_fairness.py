"""FairTurns of keys, one message at a time and many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwell.store import fairness
from dwell.store.embedded.fairness import LaneTurns
from dwell.store.fairness import FairTurns

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
    one: FairTurns[int] = FairTurns()
    many = LaneTurns()
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
        of = np.array(leaving)
        turns, lanes = of[:, 0], of[:, 1]
        if verb == "take":
            one.take(leaving[-1][0], [key for _, key in leaving], [1] * len(leaving))
            many.take(lanes, turns)
        elif verb == "leave":
            one.leave([key for _, key in leaving], [1] * len(leaving))
            many.leave(lanes)
        else:
            for turn, key in reversed(leaving):
                one.give_back((key,), ((turn,),))
            many.give_back(lanes, turns)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 9)), max_size=60))
def test_each_turn_of_a_key_is_of_one_message(steps: list[tuple[bool, str, int]]) -> None:
    """Whichever of a key's messages leave, the next one's turn is behind those that are left."""
    turns: FairTurns[str] = FairTurns()
    ready: dict[str, list[int]] = {"a": [], "b": []}
    for leaves, key, at in steps:
        standing = ready[key]
        if leaves and standing:
            turns.give_back([key], [[standing.pop(at % len(standing))]])
        else:
            (turn,) = turns.next([key], [1])
            assert all(turn > before for before in standing)
            standing.append(turn)


def test_a_flood_does_not_move_the_turn_of_others() -> None:
    turns: FairTurns[str] = FairTurns()
    assert turns.next(["a", "b"], [1_000, 1]) == [0, 0]
    turns.take(0, ["a"], [1])
    assert turns.next(["c"], [1]) == [0]
    turns.take(5, ["a"], [5])
    assert turns.next(["b", "c", "d"], [1, 1, 1]) == [5, 5, 5]


@pytest.mark.parametrize("flood", [2, 1_000])
def test_turns_come_by_themselves(flood: int) -> None:
    """One take more than there were keys lets the next turn come, however many each put."""
    turns: FairTurns[str] = FairTurns()
    turns.next(["a", "x"], [flood, 1])
    for number, key in enumerate("a012"):
        turns.take(0, [key], [1])
        assert turns.next([f"{number}"], [1]) == [1 if number >= 2 else 0]


def test_nobody_ready_is_forgotten() -> None:
    turns: FairTurns[str] = FairTurns()
    turns.next(["a"], [9])
    turns.take(0, ["a"], [1])
    turns.give_back(["a"], [[8, 7, 6, 5, 4, 3, 2]])
    assert turns.next(["a"], [1]) == [2]
    turns.leave(["a"], [2])
    assert turns.next(["a", "b"], [1, 1]) == [0, 0]


def test_a_key_that_left_has_had_nothing() -> None:
    """Who cancels a thousand messages, in whichever order, has not had as many turns."""
    turns: FairTurns[str] = FairTurns()
    turns.next(["a", "b"], [1_000, 1_000])
    for turn in range(1_000):
        turns.give_back(["a"], [[turn]])
    assert turns.next(["a"], [1])[0] <= 1


def test_keys_that_are_taken_from_by_ids_are_forgotten() -> None:
    """While others wait, whose turn does not come by that."""
    turns: FairTurns[int] = FairTurns()
    turns.next([-1], [2])
    for key in range(10_000):
        assert turns.next([key], [1]) == [0]
        turns.leave([key], [1])
    assert len(turns._last) < 3_000
    assert turns.next([-1], [1]) == [2]


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 30), min_size=1, max_size=6)), max_size=40
    )
)
def test_to_forget_keys_in_parts_changes_no_turn(
    steps: list[tuple[bool, list[int]]],
) -> None:
    """While keys are looked at, a few with each call, those not looked at yet count too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fairness, "_LOOKED_AT", -9)
        forgetful: FairTurns[int] = FairTurns()
        other: FairTurns[int] = FairTurns()
        ready: list[tuple[int, int]] = []
        for leaves, keys in steps:
            forgetful._most, other._most = 0, 1 << 60
            if not leaves:
                keys = list(dict.fromkeys(keys))
                turns = other.next(keys, [1] * len(keys))
                assert forgetful.next(keys, [1] * len(keys)) == turns
                ready += zip(turns, keys, strict=True)
                continue
            ready.sort()
            going, ready = ready[: len(keys)], ready[len(keys) :]
            for turn, key in going:
                for one in (forgetful, other):
                    if turn % 3 == 2:
                        one.give_back([key], [[turn]])
                    else:
                        one.take(turn, [key], [1])


def test_very_many_keys_are_forgotten_in_parts() -> None:
    turns: FairTurns[int] = FairTurns()
    keys = range(20_000)
    turns.next(keys, [1] * len(keys))
    turns.take(0, keys[:-1], [1] * (len(keys) - 1))
    turns.take(1, [], [])
    left = [len(keys)]
    for key in range(-30, 0):
        assert turns.next([key], [1]) == [1]
        left.append(len(turns._unseen))
    assert max(-np.diff(left)) <= 2 + fairness._LOOKED_AT
    assert left[-1] == 0
    assert len(turns._last) <= 30
