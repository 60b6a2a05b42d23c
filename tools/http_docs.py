"""The parts of the HTTP reference that are made from the endpoints and the columns."""

import json
import re
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from dwell.batch.batch import BATCH_ARRAYS
from dwell.batch.puts import PUT_ARRAYS
from dwell.server.http import openapi
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.endpoint import ROWS
from dwell.server.http.media import Media
from dwell.wire import columns
from dwell.wire.problems import CLASSES, RETRY_AFTER_S, STATUSES, status_of
from tools.states_docs import table

_FORMS = {Media.NDJSON: "NDJSON", Media.ARROW: "Arrow", Media.COLUMNS: "columns"}

_MAPS = {
    "PutColumns": "a put",
    "PutAnswerColumns": "the answer to a put",
    "BatchColumns": "messages: the answer to take, held, peek, list and get",
    "ReceiptColumns": "ack, release, touch and bury",
    "ResultColumns": "the answer to those",
}


def endpoints() -> str:
    """Return a row for each endpoint."""
    rows = [
        [
            f"`{e.method} {e.path.replace(':path', '')}`",
            e.needs,
            e.covers,
            e.summary.replace("``", "`"),
            _forms(e.takes if e.body is not None else (), e.gives if e.answer else ()),
        ]
        for e in ENDPOINTS
    ]
    return "\n".join(
        table(["endpoint", "right", "on", "what it does", "forms beside JSON, MessagePack"], rows)
    )


def _forms(takes: tuple[Media, ...], gives: tuple[Media, ...]) -> str:
    said = []
    for word, forms in (("takes", takes), ("gives", gives)):
        names = [_FORMS[form] for form in forms if form not in ROWS]
        if names:
            said.append(f"{word} {', '.join(names)}")
    return "; ".join(said)


def statuses() -> str:
    """Return a row for each status, with the classes that have it."""
    by_status: dict[int, list[str]] = {}
    for name, kind in CLASSES.items():
        if not kind.__subclasses__() or kind in STATUSES:
            by_status.setdefault(status_of(kind("")), []).append(f"`{name}`")
    rows = [
        [str(status), ", ".join(sorted(names)), f"{after} s" if after else ""]
        for status, names in sorted(by_status.items())
        for after in [RETRY_AFTER_S.get(status)]
    ]
    return "\n".join(table(["status", "classes", "Retry-After"], rows))


def column_maps() -> str:
    """Return a table of the fields of each map of the columns."""
    return "\n\n".join(_map(name, what) for name, what in _MAPS.items())


def _map(name: str, what: str) -> str:
    kind: Any = getattr(columns, name)
    rows = list(_fields(kind))
    return "\n".join([f"**{what}**", "", *table(["field", "value", "when left out"], rows)])


def _fields(kind: Any) -> Iterator[list[str]]:
    widths: dict[str, Any] = {**BATCH_ARRAYS, **PUT_ARRAYS, "sizes": np.uint32}
    widths["topic"] = np.uint32
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    hints = get_type_hints(kind)
    for place, field in enumerate(kind.__struct_fields__):
        value = _value(hints[field], widths.get(field))
        default = "" if place < required else repr(kind.__struct_defaults__[place - required])
        yield [f"`{field}`", value, f"`{default}`" if default else ""]


def _value(hint: Any, width: Any) -> str:
    if hint == columns.Column:
        return f"numbers, {np.dtype(width).name}"
    # What was annotated is no longer written with bars.
    hint = reduce(or_, get_args(hint)) if get_origin(hint) is Union else hint
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    for old, new in (("dwell.batch.page.", ""), ("dwell.wire.columns.", ""), ("bytes", "binary")):
        text = text.replace(old, new)
    return f"`{text}`".replace("|", "\\|")


# --- what requests hold ---------------------------------------------------------------------------


def requests() -> str:
    """Return a table of the fields of each request: those of the query, and those of the body."""
    document = openapi.document()
    known = document["components"]["schemas"]
    made: dict[str, list[str]] = {}
    for e in ENDPOINTS:
        path = re.sub(r"{(\w+):path}", r"{\1}", e.path)
        operation = document["paths"][path][e.method.lower()]
        query = {p["name"]: p for p in operation.get("parameters", ()) if p["in"] == "query"}
        asked = {name: p["schema"] for name, p in query.items()}
        needed = {name for name, p in query.items() if p.get("required")}
        rows = list(_rows(asked, needed, known, "query"))
        content = operation.get("requestBody", {}).get("content", {})
        if schema := content.get("application/json", {}).get("schema"):
            body = _resolved(schema, known)
            rows += _rows(body.get("properties", {}), set(body.get("required", ())), known, "body")
        if rows:
            # Many endpoints take the same.
            text = "\n".join(table(["field", "in", "value", "when left out"], rows))
            made.setdefault(text, []).append(f"`{e.method} {path}`")
    return "\n\n".join(f"**{', '.join(names)}**\n\n{text}" for text, names in made.items())


def _rows(
    fields: dict[str, Any], needed: set[str], known: dict[str, Any], place: str
) -> Iterator[list[str]]:
    for name, schema in fields.items():
        default = schema.get("default")
        left_out = "" if default is None else f"`{json.dumps(default)}`"
        if name in needed:
            left_out = "has to be there"
        about = next((s["description"] for s in _parts(schema) if "description" in s), "")
        shape = _shape(schema, known)
        yield [f"`{name}`", place, f"{shape}: {about}" if about else shape, left_out]


def _parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema.get("anyOf", ())]


def _resolved(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a body is, or that it may hold many of."""
    for part in _parts(schema):
        if "$ref" in part:
            found: dict[str, Any] = known[part["$ref"].rpartition("/")[2]]
            return found
    return schema


def _shape(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """Return what kinds of JSON a value may be, with the bounds of numbers and texts."""
    if "anyOf" in schema:
        words = dict.fromkeys(_shape(one, known) for one in schema["anyOf"])
        return " or ".join(word for word in words if word != "null")
    if "$ref" in schema:
        return f"an object: {', '.join(f'`{f}`' for f in _resolved(schema, known)['properties'])}"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_shape(schema.get('items', {}), known)}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    return f"{kind} from {low} to {high}" if low is not None and high is not None else str(kind)
