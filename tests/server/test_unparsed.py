"""What connections hold of requests that have not begun: bounded for all of them together."""

from dwell.server.unparsed import NOTED_BYTES, Unparsed

MIB = 1024 * 1024


class Connection:
    """Notes whether it was ended."""

    def __init__(self, *, is_let_in=False):
        self.is_let_in = is_let_in
        self.is_ended = False

    def abort(self):
        self.is_ended = True


def test_the_largest_end_when_there_is_too_much():
    unparsed = Unparsed()
    small, large = Connection(), [Connection() for _ in range(40)]
    assert unparsed.note(small, 2 * NOTED_BYTES)
    for connection in large:
        unparsed.note(connection, MIB)
    assert not small.is_ended
    assert 12 <= sum(not one.is_ended for one in large) <= 16
    assert unparsed.size_bytes <= 17 * MIB


def test_strangers_end_for_nobody_who_was_let_in_and_nobody_for_them():
    unparsed = Unparsed()
    stranger, known = Connection(), [Connection(is_let_in=True) for _ in range(60)]
    unparsed.note(stranger, MIB)
    for connection in known[:30]:
        unparsed.note(connection, MIB)
    assert not any(one.is_ended for one in (stranger, *known))
    for _ in range(40):
        unparsed.note(Connection(), MIB)
    assert not any(one.is_ended for one in known)
    for connection in known[30:]:
        unparsed.note(connection, MIB)
    assert 40 <= sum(not one.is_ended for one in known) <= 48


def test_what_is_let_go_of_counts_no_more():
    unparsed = Unparsed()
    connections = [Connection() for _ in range(1000)]
    for connection in connections:
        assert unparsed.note(connection, MIB)
        connection.is_let_in = True
        assert not unparsed.note(connection, 0)
    assert unparsed.size_bytes == 0
    assert not any(connection.is_ended for connection in connections)


def test_a_little_is_not_counted():
    unparsed = Unparsed()
    assert not unparsed.note(Connection(), NOTED_BYTES)
    assert unparsed.size_bytes == 0
