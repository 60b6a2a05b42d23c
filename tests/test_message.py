"""The page that fixes the words: states, receipts as text, batches, settings."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwell.batch.batch import Batch
from dwell.batch.puts import Put, PutAnswer, Puts, uniform
from dwell.errors import InvalidReceipt
from dwell.message import (
    DELAY_LEVELS_MS,
    TRANSITIONS,
    Kind,
    Message,
    Result,
    State,
    TopicSettings,
    decode_extra,
    encode_extra,
    receipts_from_text,
    receipts_to_text,
)
from dwell.retries import RETRY_DELAYS_MS, retry_delay_ms

words = st.integers(0, 2**64 - 1)


def make(id_: str, **values: Any) -> Message:
    fields: dict[str, Any] = {
        "topic": "t",
        "body": id_.encode(),
        "due_ms": 10,
        "state": State.READY,
        "priority": 1024,
        "attempt": 0,
        "max_attempts": 0,
        "lease_ms": 0,
    }
    return Message(id=id_, **(fields | values))


# --- transitions ------------------------------------------------------------------------------


def test_every_word_is_used_by_a_transition() -> None:
    assert {arrow.event for arrow in TRANSITIONS} - {None} == set(Kind)
    # "stale" and "unknown" are what is answered where there is no arrow.
    used = {arrow.result for arrow in TRANSITIONS} - {None}
    assert used == set(Result) - {Result.STALE, Result.UNKNOWN}
    assert {state for arrow in TRANSITIONS for state in (arrow.before, arrow.after)} == set(State)


def test_transitions_are_all_different() -> None:
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)
    causes = [(arrow.verb, arrow.before, arrow.result, arrow.note) for arrow in TRANSITIONS]
    assert len(set(causes)) == len(causes)


def test_every_state_can_be_reached_and_left() -> None:
    moves = {(a.before, a.after) for a in TRANSITIONS if a.before is not a.after}
    assert {before for before, _ in moves} == set(State)
    assert {after for _, after in moves} == set(State)


def test_what_moves_is_reported() -> None:
    silent = {a.verb for a in TRANSITIONS if a.before is not a.after and a.event is None}
    assert silent == {"due comes"}
    assert all(a.event is not None for a in TRANSITIONS if a.result is Result.REPLACED)


def test_words_read_as_text() -> None:
    assert [str(word) for word in (Result.CREATED, Kind.LAPSE)] == ["created", "lapse"]


# --- receipts ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(words, words)))
def test_receipts_pass_through_text(pairs: list[tuple[int, int]]) -> None:
    receipts = np.array(pairs, np.uint64).reshape(-1, 2)
    texts = receipts_to_text(receipts)
    assert texts == [f"{first:016x}{second:016x}" for first, second in pairs]
    again = receipts_from_text(texts)
    assert again.dtype == np.uint64
    assert again.shape == (len(pairs), 2)
    assert (again == receipts).all()


def test_receipts_in_capitals_are_the_same() -> None:
    text = "00ab" * 8
    assert (receipts_from_text([text.upper()]) == receipts_from_text([text])).all()


@pytest.mark.parametrize(
    "text",
    ["", "0" * 31, "0" * 33, "g" * 32, "0 " * 16, "٠" * 32, "0x" + "0" * 30, None, 5, b"0" * 32],
)
def test_receipts_that_are_garbled(text: Any) -> None:
    with pytest.raises(InvalidReceipt, match="receipt"):
        receipts_from_text(["0" * 32, text])


def test_receipts_that_are_garbled_by_a_shift() -> None:
    with pytest.raises(InvalidReceipt):
        receipts_from_text(["0" * 31 + " ", " " + "0" * 31])


# --- extras -----------------------------------------------------------------------------------


@given(st.none() | st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_extras_come_back(key: str | None, headers: dict[str, str]) -> None:
    data = encode_extra(key, headers)
    assert (data == b"") is (key is None and not headers)
    assert (decode_extra(data).key, decode_extra(data).headers) == (key, headers)


def test_extras_without_headers() -> None:
    assert encode_extra(None, None) == b""
    assert decode_extra(encode_extra("k", None)).headers == {}


# --- messages and batches ---------------------------------------------------------------------

MESSAGES = [
    make("a", receipt="0" * 31 + "1", key="k", headers={"h": "v"}, last_error="oops"),
    make("b", receipt="0" * 31 + "2", priority=2**32 - 1, attempt=65_535, max_attempts=65_535),
    make("c", receipt="f" * 32, expires_ms=2**62, lease_until_ms=5, state=State.LEASED),
    make("d", receipt="1" * 32, topic="u", due_ms=0, lease_ms=7, last_error=""),
]


def test_batch_gives_back_what_it_was_made_of() -> None:
    batch = Batch.of(MESSAGES)
    assert len(batch) == 4
    assert list(batch) == MESSAGES
    assert [batch[at] for at in range(4)] == MESSAGES
    assert [batch[at] for at in range(-4, 0)] == MESSAGES
    assert list(reversed(batch)) == MESSAGES[::-1]
    assert MESSAGES[2] in batch
    assert repr(batch) == "<Batch of 4 messages>"


@pytest.mark.parametrize("at", [4, -5, 100])
def test_batch_index_out_of_range(at: int) -> None:
    with pytest.raises(IndexError):
        Batch.of(MESSAGES)[at]


bounds = st.none() | st.integers(-6, 6)


@given(bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]))
def test_batch_slices_like_a_list(start: int | None, stop: int | None, step: int | None) -> None:
    part = slice(start, stop, step)
    batch = Batch.of(MESSAGES)[part]
    assert isinstance(batch, Batch)
    assert list(batch) == MESSAGES[part]
    assert list(batch[1:]) == MESSAGES[part][1:]


def test_batch_without_receipts() -> None:
    batch = Batch.of([make("a"), make("b")])
    assert batch.receipts is None
    assert batch[:1].receipts is None
    assert [message.receipt for message in batch] == [None, None]


def test_batch_of_none() -> None:
    batch = Batch.empty()
    assert (len(batch), list(batch), list(batch[:5])) == (0, [], [])
    assert batch.receipts is not None
    assert batch.receipts.shape == (0, 2)
    with pytest.raises(IndexError):
        batch[0]


def test_message_body_as_json() -> None:
    assert make("a", body=b'{"n": [1, null]}').json() == {"n": [1, None]}


def test_put_answer_is_a_sequence_of_puts() -> None:
    answer = PutAnswer(
        ["a", "b"], np.array([Result.CREATED, Result.KEPT], np.uint8), np.array([7, 0], np.uint64)
    )
    assert list(answer) == [Put("a", Result.CREATED, 7), Put("b", Result.KEPT)]
    assert list(answer[1:]) == [Put("b", Result.KEPT)]
    assert answer[-1].id == "b"


def test_puts_has_the_length_of_its_columns() -> None:
    column = uniform(3, 2, np.int64)
    assert column.tolist() == [3, 3]
    puts = Puts("t", [b"1", b"2"], column, column, column, column, column)
    assert len(puts) == 2
    assert len(dataclasses.replace(puts, bodies=[])) == 0


# --- topic settings ---------------------------------------------------------------------------


def test_retry_delays_step_up_and_stay() -> None:
    settings = TopicSettings(retry_delays_ms=(10, 20))
    assert [retry_delay_ms(settings.retry_delays_ms, attempt) for attempt in range(5)] == [
        10,
        10,
        20,
        20,
        20,
    ]
    assert retry_delay_ms((), 3) == 0


def test_a_delay_for_each_attempt_but_the_first_and_the_eighteen_levels() -> None:
    assert len(RETRY_DELAYS_MS) + 1 == TopicSettings().max_attempts == 16
    assert len(DELAY_LEVELS_MS) == 18
    for delays in (RETRY_DELAYS_MS, DELAY_LEVELS_MS):
        assert list(delays) == sorted(set(delays))
    assert DELAY_LEVELS_MS[2:-1] == RETRY_DELAYS_MS


def test_what_a_user_prints_says_what_it_is() -> None:
    codes = np.array([1, 1, 2], dtype=np.uint8)
    answer = PutAnswer(["a", "b", "c"], codes, np.zeros(3, dtype=np.uint64))
    assert repr(answer) == "<PutAnswer of 3: 2 created, 1 kept>"
    assert f"{State.READY} {Result.ACKED}" == "ready acked"
