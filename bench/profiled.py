"""Where the time of a server goes: its functions, by what each takes itself."""

import pstats
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.servers import dwell_process


@contextmanager
def profiled_server(name: str, calls: int, table: list[str]) -> Iterator[int]:
    """Run ``dwell serve`` under cProfile; yield its port, and fill a table when it has ended.

    ``calls`` is how many there are to divide by. A profile makes each function dearer, small ones
    most: what it shows is where to look, and not what a call costs.
    """
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "profile"
        with dwell_process(name, under=["-m", "cProfile", "-o", str(path)]) as (address, _):
            yield address[1]
        table += _lines(pstats.Stats(str(path)), calls)


def _lines(stats: pstats.Stats, calls: int, most: int = 40) -> list[str]:
    """Return the functions that take most themselves, each with its microseconds a call."""
    found = stats.stats.items()  # type: ignore[attr-defined]
    dearest = sorted(found, key=lambda item: item[1][2], reverse=True)[:most]
    return [
        f"{own * 1e6 / calls:7.2f} us {count / calls:6.2f} times  {_name(*place)}"
        for place, (_, count, own, _, _) in dearest
    ]


def _name(path: str, line: int, function: str) -> str:
    short = path.rpartition("/dwell/")[2] if "/dwell/" in path else Path(path).name
    return f"{short}:{line} {function}" if line else function
