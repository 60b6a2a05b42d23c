"""Layouts: the binary forms of messages, blocks and events, for Python and Lua alike.

Each is a head of unsigned numbers, big-endian; texts follow, with their sizes in the head.
"""

import struct

#: The codes of :mod:`struct` for numbers by size; sizes without a number code are read as bytes.
_CODES = {1: "B", 2: "H", 4: "I", 6: "6s", 7: "7s"}


class Layout:
    """The numbers of a head, in order: ``widths`` has the bytes of each, by name."""

    def __init__(self, **widths: int) -> None:
        self.widths = widths
        self.size = sum(widths.values())
        #: The format of all numbers, for :mod:`struct` and for Lua's library of that name.
        self.python = struct.Struct(">" + "".join(_CODES[width] for width in widths.values()))
        self.lua = "".join(f"I{width}" for width in widths.values())

    def place(self, name: str) -> int:
        """Return how many numbers precede a number."""
        return list(self.widths).index(name)

    def at(self, name: str) -> int:
        """Return how many bytes precede a number."""
        return self.until(name).size - self.widths[name]

    def until(self, name: str) -> "Layout":
        """Return the part up to and including a number."""
        return Layout(**dict(list(self.widths.items())[: self.place(name) + 1]))


#: A loose message: fields that a take changes come first; behind the head topic, id, extra, error,
#: owner and body.
LOOSE = Layout(
    state=1,
    attempt=2,
    take=4,
    lease_until_ms=6,
    due_ms=6,
    priority=4,
    expires_ms=6,
    lease_ms=4,
    max_attempts=2,
    topic_size=1,
    id_size=2,
    extra_size=2,
    error_size=2,
    owner_size=2,
)
#: The same for a block; ``size`` is how many messages it had, ``live`` how many are left,
#: ``names_end`` the end of the part that names them. Behind it topic, slots, ids, data, extras and
#: bodies.
BLOCK = Layout(
    state=1,
    size=1,
    live=1,
    flags=1,
    attempt=2,
    take=4,
    lease_until_ms=6,
    priority=4,
    lease_ms=4,
    max_attempts=2,
    due_ms=6,
    last_due_ms=6,
    names_end=4,
    topic_size=1,
)
#: The fields of each message in a block: among the names, and behind the ids; ends are offsets.
SLOT = Layout(is_gone=1, due_ms=6, id_end=2)
DATA = Layout(body_end=4, extra_size=2)
#: A log entry for one message, or for a block; behind it topic and id, or the block's names.
NOTE = Layout(is_block=1, kind=1, topic_size=1, due_ms=6, attempt=2, id_size=2)
BLOCK_NOTE = Layout(is_block=1, kind=1, n=7, attempt=2, live=2, names_size=4)


#: The first byte of settings while messages of their topic are still to be formed; MessagePack
#: never starts with it.
TO_FORM = 0xC1


def settings_of(data: bytes) -> bytes:
    """Return the MessagePack of settings as a shard has them."""
    return data.removeprefix(bytes([TO_FORM]))


def of_functions() -> dict[str, object]:
    """Return the layouts for the functions; offsets count from 0, as in Redis."""
    return {
        "LOOSE": {
            "all": f">{LOOSE.lua}",
            "size": LOOSE.size,
            "lease": f">{LOOSE.until('lease_until_ms').lua}",
            "lease_size": LOOSE.until("lease_until_ms").size,
            "until_lease": f">{LOOSE.until('lease_ms').lua}",
            "expires_at": LOOSE.at("expires_ms"),
            "id_size_at": LOOSE.at("id_size"),
        },
        "BLOCK": {
            "all": f">{BLOCK.lua}",
            "size": BLOCK.size,
            "lease": f">{BLOCK.until('lease_until_ms').lua}",
            "live_at": BLOCK.at("live"),
            "flags_at": BLOCK.at("flags"),
            "ends_at": BLOCK.at("lease_until_ms"),
            "slot": SLOT.lua,
            "slot_size": SLOT.size,
            "data": DATA.lua,
            "data_size": DATA.size,
        },
        "TO_FORM": TO_FORM,
        "NOTE": f">{NOTE.lua}",
        "BLOCK_NOTE": f">{BLOCK_NOTE.lua}",
    }
