"""The OpenAPI document, made from the endpoints."""

import functools
import re
from itertools import chain
from typing import Any

import msgspec

from dwell.server.http.api import ENDPOINTS
from dwell.server.http.endpoint import Endpoint
from dwell.server.http.media import Media
from dwell.server.http.schemas.answers import MessagesEvent, StreamEvent
from dwell.server.http.schemas.board import (
    HealthEvent,
    HoldersEvent,
    LoadEvent,
    OverviewEvent,
)
from dwell.version import VERSION
from dwell.wire.problems import MEDIA_TYPE, Problem

_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")

#: The media types whose content JSON schemas can describe: MessagePack has the same fields as JSON,
#: and a body may be binary there.
_DESCRIBED = (Media.JSON, Media.MSGPACK)

#: The bounds of the integers that 32 bits hold.
_INT32 = (-(2**31), 2**31 - 1)

#: The schema of each path parameter.
_PATH: dict[str, dict[str, Any]] = {
    "topic": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,200}$"},
    "id": {"type": "string", "minLength": 1, "maxLength": 256},
    "poll": {"type": "string", "minLength": 1},
    "stream": {"type": "string", "minLength": 1},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,200}$"},
}

#: The statuses of refusals that any endpoint may answer, and why.
_REFUSALS = {
    "400": "The request is not one that can be done: `error` names the class.",
    "401": "The token is missing or unknown.",
    "403": "The token lacks the right.",
    "404": "There is nothing of that name.",
    "406": "No form of the answer is acceptable.",
    "409": "An id exists, or the topic is full.",
    "413": "The body or the batch is too large.",
    "415": "The body is in a form that is not taken.",
    "429": "Too much is under way, or asked for: come again after Retry-After.",
    "500": "The store failed.",
    "503": "The server drains, or the store cannot write.",
    "507": "The disk, the memory or the quota of the token is full.",
}

_EVENT_STREAM = "text/event-stream"
_TEXT = {"type": "string"}
#: Answers that are not messages: their content type, and the schema of their content.
_PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "push": (_EVENT_STREAM, _TEXT),
    "watch": (_EVENT_STREAM, _TEXT),
    "backup": ("application/x-tar", {"type": "string", "format": "binary"}),
    "metrics": ("text/plain", _TEXT),
    "healthz": ("text/plain", _TEXT),
    "readyz": ("text/plain", _TEXT),
}
#: The events of each stream, in the order of their first occurrence.
_EVENTS = {
    "push": (StreamEvent, MessagesEvent),
    "watch": (OverviewEvent, LoadEvent, HoldersEvent, HealthEvent),
}


@functools.cache
def document() -> dict[str, Any]:
    """Return the document."""
    kinds = [
        kind for e in ENDPOINTS for kind in (e.query, e.body, *_answers(e)) if kind is not None
    ]
    kinds += [Problem, *chain.from_iterable(_EVENTS.values())]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    known = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    components["NewMessage"]["properties"]["body"] = {"description": "Text, or any other JSON."}
    components["TopicSettings"]["properties"]["on_full"]["enum"] = ["refuse", "drop"]
    _say_sizes(components)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        operation = _operation(endpoint, known, components)
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dwell",
            "version": VERSION,
            "description": "A durable delay queue.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(
    endpoint: Endpoint, known: dict[int, Any], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.group],
        "summary": endpoint.summary,
        "description": _text(endpoint),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": _PATH[name]}
                for name in _PARAMETER.findall(endpoint.path)
            ),
            *_query(endpoint, components),
        ],
        "responses": {"200": _answer(endpoint, known), **_refusals()},
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _content(endpoint.takes, known[id(endpoint.body)]),
        }
    return operation


def _text(endpoint: Endpoint) -> str:
    lines = (endpoint.handler.__doc__ or "").splitlines()
    text = "\n".join(line.strip() for line in lines).strip()
    on = f", on {endpoint.covers}" if endpoint.covers else ""
    return f"{text}\n\nRight: {endpoint.needs}{on}."


def _query(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[endpoint.query.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _scalar(kind)}
        for name, kind in schema["properties"].items()
    ]


def _scalar(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which cannot be null."""
    options = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if not options:
        return schema
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**rest, **options[0]}


def _answers(endpoint: Endpoint) -> tuple[Any, ...]:
    return endpoint.answer if isinstance(endpoint.answer, tuple) else (endpoint.answer,)


def _answer(endpoint: Endpoint, known: dict[int, Any]) -> dict[str, Any]:
    if endpoint.answer is None:
        media, schema = _PLAIN[endpoint.name]
        if endpoint.name in _EVENTS:
            schema = _stream_of([known[id(kind)] for kind in _EVENTS[endpoint.name]])
        content = {media: {"schema": schema}}
    else:
        found = [known[id(kind)] for kind in _answers(endpoint)]
        content = _content(endpoint.gives, found[0] if len(found) == 1 else {"anyOf": found})
    return {"description": "Done.", "content": content}


def _stream_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of a text that is a stream of server-sent events."""
    return {
        "type": "string",
        "description": "Events, each with the lines `event` and `data`; the latter is JSON. A line "
        "that begins with a colon says that the stream is still there.",
        "contentMediaType": _EVENT_STREAM,
        "contentSchema": {"type": "array", "items": {"oneOf": events}},
    }


def _say_sizes(schema: Any) -> None:
    """Say of every integer in a schema, in place, how many bits hold it."""
    if isinstance(schema, list):
        for part in schema:
            _say_sizes(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "integer":
            low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
            is_small = low >= _INT32[0] and high <= _INT32[1]
            schema["format"] = "int32" if is_small else "int64"
        for part in schema.values():
            _say_sizes(part)


def _content(forms: tuple[Media, ...], schema: dict[str, Any]) -> dict[str, Any]:
    return {str(form): {"schema": schema} if form in _DESCRIBED else {} for form in forms}


def _refusals() -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}}
    return {status: {"description": text, "content": content} for status, text in _REFUSALS.items()}
