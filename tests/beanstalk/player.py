"""Plays the dialogues of ``dialogues.txt``: what clients say, line by line, and what they hear.

A line begins with a connection's name and ``>`` for what it sends, ``<`` for a reply that it reads,
or ``!`` for something it does: ``close``, ``half`` (send no more), ``end`` (see that the other end
closes), ``quiet`` (hear nothing for a moment), ``sleep`` and a number of seconds.

What is sent and read ends with CRLF, and ``|`` stands for another one; a line that ends with
``...`` is sent without. ``#1`` is the number of the first job that was put, ``{t}`` a tube of the
dialogue's own. ``x*20`` is twenty times x. In a reply ``~`` stands for any number.
"""

import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tests.beanstalk.served import Line

_TEXT = Path(__file__).with_name("dialogues.txt").read_text()
_QUIET_S = 0.15
_STAR = re.compile(r"(\S)\*(\d+)")


def dialogues() -> dict[str, list[str]]:
    """Return the lines of each dialogue, by its name."""
    parts = re.split(r"^== (.*)$", _TEXT, flags=re.MULTILINE)
    return {
        name.strip(): [line for line in text.splitlines() if line and not line.startswith("#")]
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


class Player:
    """Plays one dialogue against one server."""

    def __init__(self, number: int, tube: str) -> None:
        self._number = number
        self._tube = tube
        self._lines: dict[str, Line] = {}
        self._jobs: list[bytes] = []

    def play(self, lines: list[str]) -> Iterator[tuple[str, str, str]]:
        """Do what the lines say; yield each reply's line, what was expected, and what came."""
        try:
            for line in lines:
                who, does, what = line[0], line[1], line[3:]
                connection = self._connection(who)
                if does == ">":
                    connection.send(self._bytes(what))
                elif does == "<":
                    reply = connection.read()
                    expected = _STAR.sub(lambda found: found[1] * int(found[2]), what)
                    yield line, expected, self._text(reply, expected)
                else:
                    self._do(connection, *what.split())
        finally:
            for connection in self._lines.values():
                connection.close()

    def _connection(self, who: str) -> Line:
        if who not in self._lines:
            self._lines[who] = Line(self._number, timeout=5)
        return self._lines[who]

    def _do(self, line: Line, what: str, *how: str) -> None:
        if what == "close":
            line.close()
        elif what == "half":
            line.socket.shutdown(socket.SHUT_WR)
        elif what == "end":
            assert line.rest() == b""
        elif what == "quiet":
            assert not select.select([line.socket], [], [], _QUIET_S)[0]
        else:
            assert what == "sleep", what
            time.sleep(float(how[0]))

    def _bytes(self, what: str) -> bytes:
        is_whole = not what.endswith("...")
        what = _STAR.sub(lambda found: found[1] * int(found[2]), what.removesuffix("..."))
        data = what.replace("{t}", self._tube).encode()
        data = data.replace(b"|", b"\r\n").replace(b"\\0", b"\0").replace(b"\\r", b"\r")
        data = data.replace(b"\\n", b"\n")
        data = re.sub(rb"#(\d+)", lambda found: self._jobs[int(found[1]) - 1], data)
        return data + b"\r\n" * is_whole

    def _text(self, reply: bytes, expected: str) -> str:
        """Return a reply as the dialogues write it."""
        assert reply.endswith(b"\r\n"), reply
        put = re.fullmatch(rb"INSERTED (\d+)\r\n", reply)
        if put is not None:
            self._jobs.append(put[1])
        head, *rest = reply[:-2].decode().split("\r\n")
        words = head.split(" ")
        known = [job.decode() for job in self._jobs]
        if words[0] in ("INSERTED", "RESERVED", "FOUND") and words[1] in known:
            words[1] = f"#{known.index(words[1]) + 1}"
        text = "|".join([" ".join(words), *rest]).replace(self._tube, "{t}").replace("\n", "\\n")
        if "~" in expected:
            pattern = re.escape(expected).replace("\\~", r"\d+")
            return expected if re.fullmatch(pattern, text) else text
        return text
