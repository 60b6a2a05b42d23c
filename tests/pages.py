"""Run the code of a page of the docs, in the folder where it is started.

``python -m tests.pages docs/quickstart.md`` runs every ``python`` block of a page, which share one
namespace, and every ``console`` block, whose lines after ``$`` are one shell's. A ``text`` block
that follows a ``python`` block is what that prints; in a ``console`` block the output stands under
its command. Three dots stand for anything. A block that begins with ``# file: NAME`` is written to
that file instead. ``<!-- skip -->`` before a block leaves it out.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.servers import free_port

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#|//) file: (\S+)\n")
_SKIP = re.compile(r"<!-- skip -->\s*\Z")
_BETWEEN = re.compile(r"\s*(?:<!-- [^>]* -->\s*)*(?:It prints:\s*)?")
_END = "--- end of the output of command"


class Block(NamedTuple):
    """One block of code of a page: its language, the line it begins at, and its text."""

    language: str
    line: int
    text: str
    expected: str | None


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks that are to be run."""
    found = list(_FENCE.finditer(page))
    for number, block in enumerate(found):
        language = block[2]
        is_run = language in ("python", "console") or (language == "js" and _FILE.match(block[3]))
        if not is_run or _SKIP.search(page[: block.start()]):
            continue
        expected = None
        if number + 1 < len(found) and found[number + 1][2] == "text":
            after = found[number + 1]
            if _BETWEEN.fullmatch(page[block.end() : after.start()]):
                expected = after[3]
        yield Block(language, page[: block.start(3)].count("\n") + 1, block[3], expected)


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page tells its reader to write."""
    named = ((_FILE.match(block.text), block.text) for block in blocks_of(page))
    return {name[1]: text for name, text in named if name}


#: How pages start a server and a shop, how to tell each its port, and the port if it is not told.
_SERVED = {
    "dwell serve ./queue --beanstalk off": ("--http 127.0.0.1:", "8410"),
    "uvicorn app:app": ("--port ", "8000"),
}


def at_free_ports(page: str) -> str:
    """Return a page whose servers have ports of their own, as tests run side by side."""
    for command, (option, usual) in _SERVED.items():
        if f"{command} >" in page:
            port = free_port()
            page = re.sub(rf"(127\.0\.0\.1|localhost):{usual}\b", rf"\1:{port}", page)
            page = page.replace(f"{command} >", f"{command} {option}{port} >")
    return page


def run_page(path: Path) -> list[str]:
    """Run a page's blocks; return what did not print what the page says."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    faults = []
    for block in blocks_of(path.read_text()):
        if name := _FILE.match(block.text):
            Path(name[1]).write_text(block.text)
            continue
        if block.language == "python":
            printed = _run_python(path, block, namespace)
            pairs = [] if block.expected is None else [(block.expected, printed)]
        else:
            pairs = list(_run_console(block.text))
        for expected, printed in pairs:
            if not _same(expected, printed):
                faults.append(f"{path}:{block.line}\nexpected:\n{expected}printed:\n{printed}")
    return faults


def _run_python(path: Path, block: Block, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    # The empty lines make a traceback name the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


def _run_console(text: str) -> Iterator[tuple[str, str]]:
    """Yield the expected and the real output of each command."""
    commands: list[str] = []
    expected: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            expected.append("")
        else:
            expected[-1] += line + "\n"
    script = "".join(f"{command}\necho '{_END}'\n" for command in commands)
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **own, "COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    yield from zip(expected, done.stdout.split(f"{_END}\n")[:-1], strict=True)


def _same(expected: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, flags)


if __name__ == "__main__":
    page = Path(sys.argv.pop())
    sys.exit("\n".join(run_page(page)) or 0)
