"""The decoder: bytes in, commands out, whatever the bytes are and wherever they are cut."""

import itertools
import os
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwell.server.beanstalk.commands import MAX_LINE_BYTES, Verb, parse_line, parse_put
from dwell.server.beanstalk.decoder import READ_AHEAD_BYTES, Decoder, Heads
from dwell.server.beanstalk.replies import (
    BAD_FORMAT,
    EXPECTED_CRLF,
    JOB_TOO_BIG,
    OUT_OF_MEMORY,
    UNKNOWN_COMMAND,
)
from dwell.server.beanstalk.tubes import is_tube, topic_of, tube_of
from tests.damage import WAYS, damages

MOST_BYTES = 300
#: How many inputs are tried; a million in the long run.
INPUTS = int(os.environ.get("DWELL_FUZZ", "10000"))
FUZZ = settings(
    max_examples=INPUTS // WAYS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# --- inputs -----------------------------------------------------------------------------------

_numbers = st.one_of(
    st.integers(0, 20), st.integers(0, 2**65), st.sampled_from([2**31, 2**32, 2**63, 2**64])
).map(lambda number: b"%d" % number)
_names = st.one_of(
    st.sampled_from([b"default", b"a", b"-a", b"a:b", b"x" * 200, b"x" * 201, b""]),
    st.binary(max_size=20),
)
_words = st.sampled_from(
    b"POST put use reserve reserve-with-timeout reserve-job delete release bury touch watch ignore "
    b"peek peek-ready peek-delayed peek-buried kick kick-job stats stats-job stats-tube list-tubes "
    b"list-tube-used list-tubes-watched pause-tube quit foo".split()
)


@st.composite
def _lines(draw):
    """A command without a body, right or nearly so."""
    parts = [draw(_words), *draw(st.lists(st.one_of(_numbers, _names), max_size=4))]
    return draw(st.sampled_from([b" ", b"  ", b""])).join(parts) + draw(_ends)


@st.composite
def _puts(draw):
    """A put whose body is as long as it says, or nearly so."""
    body = draw(st.binary(max_size=MOST_BYTES + 50))
    size = max(len(body) + draw(st.sampled_from([0, 0, 0, 0, -1, 1, 5])), 0)
    return b"put %d 0 %d %d\r\n" % (draw(st.integers(0, 9)), draw(st.integers(0, 9)), size) + (
        body + draw(_ends)
    )


_ends = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"", b"\r\n\r\n"])
_runs = st.tuples(
    st.sampled_from([b"reserve\r\n", b"delete 12\r\n", b"touch 3\r\n", b"put 1 0 1 1\r\nx\r\n"]),
    st.integers(1, 30),
).map(lambda pair: pair[0] * pair[1])
_long = st.integers(MAX_LINE_BYTES - 5, 3 * MAX_LINE_BYTES).map(lambda size: b"z" * size)
_inputs = st.lists(
    st.one_of(
        _lines(),
        _puts(),
        _runs,
        st.binary(max_size=60),
        _long.flatmap(lambda text: _ends.map(lambda end: text + end)),
    ),
    max_size=12,
).map(b"".join)
_cuts = st.lists(st.integers(0, 3000), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the input cut at some places."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


# --- what it should come to -------------------------------------------------------------------


def decoded(given: list[bytes]) -> list:
    """Return what the decoder makes of an input, one value a command."""
    decoder = Decoder(Heads(MOST_BYTES))
    found = []
    for piece in given:
        decoder.feed(piece)
        # Each run has a command, and each command takes two bytes at least.
        for _ in range(len(piece) + MAX_LINE_BYTES + MOST_BYTES):
            run = decoder.next()
            if run is None:
                break
            assert run.count == len(run.items) > 0
            if run.verb is Verb.PUT:
                found += zip([run.verb] * run.count, run.heads, run.items, strict=True)
            else:
                found += [(run.verb, item) for item in run.items]
        else:
            raise AssertionError("the decoder does not end")
        assert decoder.size_bytes <= MAX_LINE_BYTES + MOST_BYTES + 2
        assert not decoder.is_full
    return found


def modelled(data: bytes) -> list:
    """Return what an input comes to, by the shortest program that says it."""
    found = []
    while True:
        if found == [(Verb.REFUSED, UNKNOWN_COMMAND)]:
            return [*found, (Verb.QUIT, None)]
        line, end, rest = data.partition(b"\r\n")
        is_long = len(line) + 2 > MAX_LINE_BYTES if end else len(line) >= MAX_LINE_BYTES
        if is_long and (not found or re.match(b"[A-Z]+ ", line)):
            return [*found, (Verb.REFUSED, BAD_FORMAT), (Verb.QUIT, None)]
        if not end:
            return found
        if len(line) + 2 > MAX_LINE_BYTES:
            found.append((Verb.REFUSED, BAD_FORMAT))
            data = rest
            continue
        data = rest
        if not line.startswith(b"put "):
            found.append(parse_line(line))
            continue
        head = parse_put(line, MOST_BYTES)
        if head is None:
            found.append((Verb.REFUSED, BAD_FORMAT))
        elif len(rest) < head.size_bytes + 2:
            return found
        else:
            body, tail = rest[: head.size_bytes], rest[head.size_bytes :][:2]
            data = rest[head.size_bytes + 2 :]
            if head.size_bytes > MOST_BYTES:
                found.append((Verb.REFUSED, JOB_TOO_BIG))
            elif tail != b"\r\n":
                found.append((Verb.REFUSED, EXPECTED_CRLF))
            else:
                found.append((Verb.PUT, head, body))


def test_a_body_that_reads_like_a_refusal_is_a_body():
    data = b"put 0 0 0 17\r\nUNKNOWN_COMMAND\r\n\r\n"
    assert decoded([data]) == modelled(data)
    assert len(decoded([data])) == 1


@pytest.mark.campaign
@pytest.mark.timeout(300 + INPUTS // 100)
@FUZZ
@given(_inputs, damages, _cuts)
def test_fuzz_any_input_comes_to_the_same_commands_wherever_it_is_cut(data, damage, cuts):
    for some in (data, *damage(data)):
        expected = modelled(some)
        assert decoded([some]) == expected
        assert decoded(pieces(some, cuts)) == expected


@settings(max_examples=200, deadline=None)
@given(_inputs)
def test_bytes_may_come_one_at_a_time(data):
    assert decoded([data[at : at + 1] for at in range(len(data))]) == modelled(data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(_lines(), _puts(), _runs), max_size=12).map(b"".join), _cuts)
def test_what_comes_while_a_run_is_under_way_is_kept(data, cuts):
    """The decoder is asked for one run at a time, and fed in between."""
    decoder, found = Decoder(Heads(MOST_BYTES)), []
    # Each run has two bytes at least.
    for piece in [*pieces(data, cuts), *[b""] * (len(data) // 2)]:
        decoder.feed(piece)
        run = decoder.next()
        if run is not None and run.verb is Verb.PUT:
            found += zip([run.verb] * run.count, run.heads, run.items, strict=True)
        elif run is not None:
            found += [(run.verb, item) for item in run.items]
    assert found == modelled(data)


# --- bounds and speed -------------------------------------------------------------------------


def test_a_decoder_that_is_not_asked_says_when_it_is_full():
    decoder = Decoder(Heads(MOST_BYTES))
    decoder.feed(b"put 0 0 1 300\r\n")
    assert decoder.next() is None
    decoder.feed(b"x" * READ_AHEAD_BYTES)
    assert not decoder.is_full
    decoder.feed(b"x" * 1000)
    assert decoder.is_full


def test_what_is_passed_over_is_not_kept():
    decoder = Decoder(Heads(MOST_BYTES))
    decoder.feed(b"put 0 0 1 1000000\r\n")
    for _ in range(10):
        assert decoder.next() is None
        decoder.feed(b"x" * 100_000)
        assert decoder.next() is None
        assert decoder.size_bytes == 0
    decoder.feed(b"\r\n")
    assert decoder.next().items == [JOB_TOO_BIG]
    for _ in range(10):
        decoder.feed(b"x" * 100_000)
        assert decoder.next() is None
        assert decoder.size_bytes == 0


@pytest.mark.parametrize("size", [1, 100, 302])
def test_a_put_that_is_given_up_is_not_kept_and_has_its_reply(size):
    decoder = Decoder(Heads(MOST_BYTES))
    decoder.feed(b"reserve\r\nput 0 0 1 300\r\n")
    assert decoder.next().verb is Verb.RESERVE
    assert not decoder.is_in_body
    assert decoder.next() is None
    assert decoder.is_in_body
    decoder.feed(b"x")
    decoder.give_up(OUT_OF_MEMORY)
    assert (decoder.size_bytes, decoder.is_in_body) == (0, False)
    rest = b"x" * 299 + b"\r\nreserve\r\nput 0 0 1 301\r\n" + b"x" * 303
    found = []
    for at in range(0, len(rest), size):
        decoder.feed(rest[at : at + size])
        while (run := decoder.next()) is not None:
            found.append((run.verb, run.items))
    assert found == [
        (Verb.REFUSED, [OUT_OF_MEMORY]),
        (Verb.RESERVE, [None]),
        (Verb.REFUSED, [JOB_TOO_BIG]),
    ]


def test_a_large_body_in_small_pieces_takes_time_that_grows_with_its_size():
    decoder = Decoder(Heads(1 << 20))
    decoder.feed(b"put 0 0 1 %d\r\n" % (1 << 20))
    start = time.process_time()
    for _ in range(1 << 17):
        decoder.feed(b"x" * 8)
        assert decoder.next() is None
    decoder.feed(b"\r\n")
    assert decoder.next().items == [b"x" * (1 << 20)]
    assert time.process_time() - start < 5


def test_lines_of_puts_are_kept_up_to_a_limit():
    heads = Heads(MOST_BYTES)
    for priority in range(5000):
        assert heads[b"put %d 0 1 2" % priority] == (priority, 0, 1, 2)
    assert len(heads) <= 1024
    assert heads[b"put x"] is None
    assert heads[b"put 0 0 0 301"] is None


def test_runs_have_a_bound():
    decoder = Decoder(Heads(MOST_BYTES))
    decoder.feed(b"reserve\r\n" * 2500 + b"delete 1\r\n" * 1500 + b"touch 1\r\n" * 1500)
    sizes = []
    while (run := decoder.next()) is not None:
        sizes.append((run.verb, run.count))
    assert sizes == [
        (Verb.RESERVE, 1000),
        (Verb.RESERVE, 1000),
        (Verb.RESERVE, 500),
        (Verb.DELETE, 1000),
        (Verb.DELETE, 500),
        (Verb.TOUCH, 1000),
        (Verb.TOUCH, 500),
    ]


# --- names ------------------------------------------------------------------------------------

_CHARS = "ABCXYZabcxyz0189-+/;.$_()"
_tubes = st.text(_CHARS, min_size=1, max_size=200).filter(lambda name: name[0] != "-")


@settings(max_examples=1000)
@given(_tubes)
def test_a_tube_and_its_topic_name_each_other(tube):
    topic = topic_of(tube)
    if topic is None:
        assert len(tube) + 2 * sum(tube.count(char) for char in "+/;$()") > 200
    else:
        assert is_tube(topic)
        assert tube_of(topic) == tube


@pytest.mark.parametrize("topic", ["a:b", ":", "a:2", ":2b", ":41", "-a", "x:2B:"])
def test_topics_that_are_no_tubes_keep_their_names(topic):
    assert not is_tube(topic)
    assert tube_of(topic) == topic
