"""The docs page: the API in one HTML page that needs nothing from elsewhere."""

import functools
import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dwell.server.http.openapi import document

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{margin-bottom:0}h2{margin-top:2.5rem;text-transform:capitalize}
details{border:1px solid #ddd;border-radius:6px;margin:.5rem 0;padding:.5rem 1rem}
summary{cursor:pointer}code,pre{font:14px ui-monospace,monospace}
pre{background:#f6f6f6;padding:.75rem;border-radius:6px;overflow-x:auto}
.method{display:inline-block;width:4.5rem;font-weight:700}.get{color:#07609c}.post{color:#287a1f}
.patch{color:#9a6200}.delete{color:#b3261e}td,th{text-align:left;padding:.2rem 1rem .2rem 0}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}
details{border-color:#444}.get{color:#6db8f2}.post{color:#7fd174}.patch{color:#e0b050}
.delete{color:#ff8a80}a{color:#8ab4f8}}
"""


@functools.cache
def page() -> bytes:
    """Return the page."""
    api = document()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>Dwell {api['info']['version']}</title><style>{_STYLE}</style>",
        f"<h1>Dwell {api['info']['version']}</h1>",
        "<p>A durable delay queue. The same as a document for programs: ",
        '<a href="/openapi.json">openapi.json</a>.</p>',
        *_groups(api),
        "<h2>Schemas</h2>",
        *(_schema(name, schema) for name, schema in api["components"]["schemas"].items()),
    ]
    return "".join(parts).encode()


@functools.cache
def policy() -> str:
    """Return the content security policy of the page: only its own style is allowed."""
    digest = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _groups(api: dict[str, Any]) -> Iterator[str]:
    operations = [
        (path, method, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    operations.sort(key=lambda found: _order(api).index(found[2]["tags"][0]))
    for group, members in groupby(operations, key=lambda found: found[2]["tags"][0]):
        yield f"<h2>{html.escape(group)}</h2>"
        yield from (_operation(*member) for member in members)


def _order(api: dict[str, Any]) -> list[str]:
    tags = [op["tags"][0] for methods in api["paths"].values() for op in methods.values()]
    return list(dict.fromkeys(tags))


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{p['name']}</code><td>{p['in']}<td><code>"
        f"{html.escape(_compact(p['schema']))}</code>"
        for p in operation["parameters"]
    )
    body = ""
    for form, content in operation.get("requestBody", {}).get("content", {}).items():
        body += f"<p>Body, <code>{form}</code> {_link(content.get('schema'))}</p>"
    answers = ", ".join(
        f"<code>{form}</code> {_link(content.get('schema'))}"
        for form, content in operation["responses"]["200"]["content"].items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    text = html.escape(operation["description"]).replace("\n\n", "<p>")
    return (
        f"<details><summary><span class='method {method}'>{method.upper()}</span> "
        f"<code>{html.escape(path)}</code> {html.escape(operation['summary'])}</summary>"
        f"<p>{text}</p>{table}{body}<p>Answer: {answers}</p></details>"
    )


def _link(schema: dict[str, Any] | None) -> str:
    if not schema:
        return ""
    options = schema.get("anyOf", [schema])
    names = [option.get("$ref", "").rpartition("/")[2] for option in options]
    return " or ".join(f'<a href="#{name}">{name}</a>' for name in names if name)


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = html.escape(json.dumps(schema, indent=1))
    return f"<details id={name}><summary><code>{name}</code></summary><pre>{text}</pre></details>"


def _compact(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(", ", ": "))
