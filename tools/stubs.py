"""Make src/dwell/threads/sync.pyi, which tells type checkers what the sync face looks like.

``python -m tools.stubs`` writes it anew from the source of the asynchronous queue.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "dwell"
STUB = SOURCE / "threads" / "sync.pyi"

# The modules whose classes make up the queue, and the class in each.
_PARTS = (
    ("queue/queue.py", "Queue"),
    ("queue/selecting.py", "Selecting"),
    ("queue/verbs.py", "Verbs"),
    ("queue/schedules/schedules.py", "Schedules"),
    ("queue/typed.py", "Typed"),
)

_HEAD = """# Made by `python -m tools.stubs` from queue/{queue,selecting,typed,verbs}.py and
# queue/schedules/schedules.py: change those.
# ruff: noqa: A002
# mypy: disable-error-code="overload-overlap"
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar
from dwell.queue import Queue
from dwell.queue.selecting import States, Which
from dwell.queue.verbs import ManyTaken, Taken, Versions
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.codec import TypedMessage
from dwell.queue.typed import Typed
from dwell.threads.bridge import LoopThread
"""

_OWN = """
T = TypeVar("T")

class SyncQueue:
    def __init__(self, queue: Queue, thread: LoopThread | None = None) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...
    @property
    def schedules(self) -> SyncSchedules: ...
    def topic(self, name: str, kind: type[T]) -> SyncTyped[T]: ...
"""

#: What stands before the methods of a class that is another face.
_FACES = {
    "Schedules": """
class SyncSchedules:
    def __init__(self, schedules: Schedules, run: Callable[..., Any]) -> None: ...
""",
    "Typed": """
class SyncTyped(Generic[T]):
    def __init__(self, typed: Typed[T], queue: SyncQueue) -> None: ...
""",
}


def _methods(body: list[ast.stmt]) -> Iterator[ast.AsyncFunctionDef]:
    """Yield the public coroutine methods; of an overloaded one, only the overloads."""
    overloaded = set()
    for method in body:
        if not isinstance(method, ast.AsyncFunctionDef) or method.name.startswith("_"):
            continue
        if method.decorator_list:
            overloaded.add(method.name)
            yield method
        elif method.name not in overloaded | {"open", "close"}:
            yield method


def _stub(method: ast.AsyncFunctionDef) -> str:
    """Return a method as a plain one without a body."""
    text = ast.unparse(
        ast.FunctionDef(
            name=method.name,
            args=method.args,
            body=[ast.Expr(ast.Constant(...))],
            decorator_list=method.decorator_list,
            returns=method.returns,
            lineno=1,
        )
    )
    return text.replace("AsyncIterator", "Iterator")


def _ruff(text: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def render() -> str:
    """Return what the stub has to be."""
    imports, methods = _HEAD, _OWN
    for name, class_name in _PARTS:
        tree = ast.parse((SOURCE / name).read_text())
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                imports += ast.unparse(node) + "\n"
            elif isinstance(node, ast.ClassDef) and node.name == class_name:
                methods += _FACES.get(class_name, "")
                stubs = "\n".join(map(_stub, _methods(node.body)))
                methods += "\n" + "\n".join("    " + line for line in stubs.splitlines())
    text = imports + methods + "\n"
    # At once, an import that is wrapped for names which then go would stay wrapped.
    for rules in ("F401,F811", "I"):
        text = _ruff(text, "check", "--fix", "--quiet", "--select", rules)
    return _ruff(text, "format")


if __name__ == "__main__":
    STUB.write_text(render())
