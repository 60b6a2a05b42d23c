"""Fill the marked parts of the docs from the code: layouts, columns, errors, signatures, examples.

``python -m tools.reference_docs`` writes anew whatever stands between ``<!-- made: NAME ... -->``
and ``<!-- /made -->``. A name is one of PARTS; what follows it says which of them.
"""

import ast
import gc
import importlib
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dwell import message
from dwell.batch import batch
from dwell.message import TopicSettings
from dwell.queue.exports import manifest, writing
from dwell.store.embedded import eventblock, folder, snapshot
from dwell.store.embedded.journal import journal, record
from dwell.store.embedded.journal.record import SCHEMAS
from dwell.store.embedded.journal.room import RESERVED_PART
from dwell.store.embedded.limits import LIMITS
from tools import http_docs, rooms
from tools.states_docs import table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dwell"

_PART = re.compile(r"(<!-- made: (\w+)(?: ([^>]*?))? -->\n).*?(<!-- /made -->)", re.DOTALL)
_WIDTH = 92


def pages() -> list[Path]:
    """Return every page that may have marked parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def render(page: str) -> str:
    """Return a page with its marked parts made anew."""

    def fill(found: re.Match[str]) -> str:
        if found[2] in MEASURED:
            return found[0]
        return f"{found[1]}{PARTS[found[2]](found[3] or '')}\n{found[4]}"

    return _PART.sub(fill, page)


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"


# --- from docstrings --------------------------------------------------------------------------


def _layout(name: str) -> str:
    """Return the first literal block of a module's docstring."""
    doc = importlib.import_module(name).__doc__ or ""
    lines = iter(doc.split("::\n", 1)[1].splitlines())
    block: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith("    "):
            break
        block.append(line)
    return _fenced(textwrap.dedent("\n".join(block)))


def _grid(name: str) -> str:
    """Return the table of a module's docstring, which is one of columns between lines of ``=``."""
    doc = importlib.import_module(name).__doc__ or ""
    _, heads, body, _ = re.split(r"^=[= ]*$\n?", doc, flags=re.MULTILINE)
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in body.strip().splitlines()]
    rows = [[f"`{name}`", size, text.replace("|", "\\|")] for name, size, text in rows]
    return "\n".join(table(heads.split(), rows))


# --- from data --------------------------------------------------------------------------------


def _dtype(dtype: type[np.generic]) -> str:
    return np.dtype(dtype).name


def _columns(schema: dict[str, type[np.generic]]) -> str:
    return ", ".join(f"`{name}` {_dtype(dtype)}" for name, dtype in schema.items())


def _records(_: str) -> str:
    rows = (
        [str(kind.value), f"`{kind.name}`", _columns(schema) or "none"]
        for kind, schema in SCHEMAS.items()
    )
    return "\n".join(table(["number", "kind", "columns, in this order"], rows))


def _event_columns(_: str) -> str:
    rows = ([f"`{name}`", _dtype(dtype)] for name, dtype in eventblock._COLUMNS.items())
    return "\n".join(table(["column", "type"], rows))


def _export_columns(_: str) -> str:
    rows = (
        [f"`{field.name}`", f"`{field.type}`", "null if none" if field.nullable else ""]
        for field in writing.SCHEMA
    )
    return "\n".join(table(["column", "type of Arrow", ""], rows))


def _fields(name: str) -> str:
    """Return the fields of a class, as a list of names and types."""
    owner = {"record": record, "snapshot": snapshot, "folder": folder, "batch": batch}
    owner["manifest"] = manifest
    module, _, class_name = name.partition(".")
    fields = getattr(owner[module], class_name).__annotations__
    texts = ast.parse(Path(owner[module].__file__ or "").read_text())
    node = next(n for n in texts.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    types = {
        ast.unparse(item.target): ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign)
    }
    public = (field for field in fields if not field.startswith("_"))
    return ", ".join(f"`{field}: {types[field]}`" for field in public)


def _limits(_: str) -> str:
    names = [name for name in vars(message) if name.startswith("MAX_")]
    rows = ([f"`{name}`", f"{getattr(message, name):,}"] for name in names)
    return "\n".join(table(["limit", "value"], rows))


def _constants(_: str) -> str:
    rows = [
        ["format", str(folder.FORMAT)],
        ["bytes of a segment", f"{journal.SEGMENT_BYTES:,}"],
        ["part of the last segment kept from puts", "1/2"],
        ["part of a segment kept for acks", f"1/{RESERVED_PART}"],
        ["events in a block, about", f"{LIMITS.block_events:,}"],
        ["bytes of an event file, about", f"{LIMITS.event_file_bytes:,}"],
    ]
    return "\n".join(table(["what", "value"], rows))


def _rooms(_: str) -> str:
    """Return the rooms, those of the highest floor first: what is in each, what it imports."""
    arrows, rows = rooms.arrows(), []
    for number, floor in reversed(list(enumerate(rooms.floors()))):
        for room in floor:
            where = [_module_path(name) for name, other in rooms.ROOMS.items() if other == room]
            below = ", ".join(sorted(arrows[room])) or "nothing of ours"
            rows.append([str(number), f"**{room}**", ", ".join(where), below])
    return "\n".join(table(["floor", "room", "where", "imports from"], rows))


def _module_path(name: str) -> str:
    path = rooms.MODULES[name].relative_to(rooms.SOURCE)
    is_folder = path.name == "__init__.py" and name != "dwell"
    shown = path.parent if is_folder else path
    return f"[{shown.as_posix()}](../src/{shown.as_posix()})"


def _picture(_: str) -> str:
    """Return the rooms as a picture; an arrow that leads there by other rooms too is left out."""
    arrows = rooms.arrows()
    lines = ["flowchart TD"]
    for number, floor in reversed(list(enumerate(rooms.floors()))):
        lines += [f"  subgraph floor{number}[ ]", *(f"    {room}" for room in floor), "  end"]
    for room, below in arrows.items():
        far = {place for other in below for place in _below(arrows, other)}
        lines += [f"  {room} --> {other}" for other in sorted(below - far)]
    return _fenced("\n".join(lines), "mermaid")


def _below(arrows: dict[str, set[str]], room: str) -> set[str]:
    return arrows[room].union(*(_below(arrows, other) for other in arrows[room]))


def _default(name: str) -> str:
    value = getattr(TopicSettings(), name)
    return f"{value:,}" if type(value) is int else f"`{value}`".lower()


def _settings(_: str) -> str:
    """Return the settings with their defaults and what the docstring says of each."""
    doc = " ".join((TopicSettings.__doc__ or "").split())
    said = dict(re.findall(r"``(\w+)``: (.+?)\.(?= ``\w+``:|$)", doc))
    rows = (
        [f"`{name}`", _default(name), said[name].replace("``", "`")]
        for name in TopicSettings.__struct_fields__
    )
    return "\n".join(table(["setting", "default", "what it means"], rows))


# --- from source ------------------------------------------------------------------------------


def _method(name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Return a function or method, named as ``module.py:Class.method``; the last of overloads."""
    file, _, path = name.partition(":")
    body = ast.parse((SOURCE / file).read_text()).body
    *classes, last = path.split(".")
    for class_name in classes:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == class_name).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in body if isinstance(node, functions) and node.name == last][-1]


def _verb(name: str) -> str:
    """Return how something is called, and what its docstring says."""
    doc = ast.get_docstring(_method(name))
    return _signature(name) + (f"\n\n{_prose(doc)}" if doc else "")


def _class(name: str) -> str:
    """Return what the docstring of a class says."""
    file, _, class_name = name.partition(":")
    body = ast.parse((SOURCE / file).read_text()).body
    node = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == class_name)
    return _prose(ast.get_docstring(node) or "")


def _prose(doc: str) -> str:
    """Return a docstring as Markdown."""
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc).replace("``", "`")
    return re.sub(
        r"(?m)^ *::\n\n((?:    .*\n|\n)+)",
        lambda found: f"{_fenced(textwrap.dedent(found[1]))}\n\n",
        doc,
    )


def _signature(name: str) -> str:
    node = _method(name)
    arguments = _arguments(node.args)
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    called = node.name if node.name != "__init__" else name.partition(":")[2].partition(".")[0]
    line = f"{prefix}{called}({', '.join(arguments)}){returns.replace(' -> None', '')}"
    if len(line) > _WIDTH:
        inner = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{prefix}{called}(\n{inner}){returns}"
    return _fenced(line, "python")


def _arguments(given: ast.arguments) -> list[str]:
    plain = [argument for argument in given.args if argument.arg != "self"]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    texts = [_argument(a, d) for a, d in zip(plain, defaults, strict=True)]
    if given.vararg is not None:
        texts.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        texts.append("*")
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    texts += [_argument(a, d) for a, d in pairs]
    return texts + ([] if given.kwarg is None else _keywords(given.kwarg))


def _keywords(argument: ast.arg) -> list[str]:
    """Return keywords; those of a class of options one by one."""
    kind = ast.unparse(argument.annotation) if argument.annotation is not None else ""
    if not kind.startswith("Unpack["):
        return [f"**{_argument(argument, None)}"]
    tree = ast.parse((SOURCE / "given" / "options.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return _options(kind.removeprefix("Unpack[").removesuffix("]"), classes)


def _options(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    if name not in classes:
        return []
    own = (item for item in classes[name].body if isinstance(item, ast.AnnAssign))
    texts = [f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)} = ..." for item in own]
    return _options(ast.unparse(classes[name].bases[0]), classes) + texts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    return f"{argument.arg}{annotation}" + ("" if default is None else f" = {_value(default)}")


def _value(default: ast.expr) -> str:
    """Return a default as a reader would write it."""
    value = default.value if isinstance(default, ast.Constant) else None
    if isinstance(value, str):
        return json.dumps(value)
    return f"{value:_}" if type(value) is int else ast.unparse(default)


def _example(name: str) -> str:
    """Return an example's code, and what it prints."""
    text = (ROOT / "examples" / f"{name}.py").read_text()
    _, doc, code = text.split('"""', 2)
    prints = textwrap.dedent(doc.split("Prints::\n", 1)[1])
    return f"{_fenced(code, 'python')}\n\nIt prints:\n\n{_fenced(prints, 'text')}"


def _file(name: str) -> str:
    """Return a file of an example, as one that the page tells its reader to write."""
    path = ROOT / "examples" / name
    return _fenced(f"# file: {path.name}\n{path.read_text()}", "python")


PARTS: dict[str, Callable[[str], str]] = {
    "endpoints": lambda _: http_docs.endpoints(),
    "requests": lambda _: http_docs.requests(),
    "statuses": lambda _: http_docs.statuses(),
    "wire": lambda _: http_docs.column_maps(),
    "class": _class,
    "columns": _event_columns,
    "constants": _constants,
    "example": _example,
    "export": _export_columns,
    "fields": _fields,
    "file": _file,
    "grid": _grid,
    "layout": _layout,
    "limits": _limits,
    "picture": _picture,
    "records": _records,
    "rooms": _rooms,
    "settings": _settings,
    "signature": _signature,
    "verb": _verb,
}


#: What a command writes that measures it, and nothing else can tell.
MEASURED = {"survive", "peers"}


def _stale() -> Iterator[Path]:
    """Yield the pages that are not as they have to be."""
    return (page for page in pages() if render(page.read_text()) != page.read_text())


if __name__ == "__main__":
    for stale in list(_stale()):
        stale.write_text(render(stale.read_text()))
        print(stale.relative_to(ROOT))
    # What msgspec keeps of the types of requests and answers makes the collection of garbage at the
    # end of the process crash, one time in three (msgspec#717); so that leaves it alone.
    gc.freeze()
