"""Make docs/reference/server.md, the reference of ``dwell serve``.

``python -m tools.server_docs`` writes it anew from the settings themselves.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from dwell.server import tokens
from dwell.server.settings import FIELDS, Field, ServerSettings
from dwell.server.sources import DEFAULT, Loaded, show

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "server.md"

_HEAD = """<!-- Made by `python -m tools.server_docs` from src/dwell/server: change that. -->
# The server

`pip install 'dwell[cli,server]'` installs `dwell serve [STORE]`: one process that opens a store and
serves it over HTTP and the beanstalk protocol. The page [operate](../howto/operate.md) describes
production use.

## Settings

Each setting has one name in three forms: an option, an environment variable, and a key of the TOML
file that `--config` or `DWELL_CONFIG` names. The option overrides the variable, the variable the
file, and the file the default. An empty variable counts as not set. Paths are relative to the
folder in which the server was started. `dwell serve --show-config` prints the resulting settings as
such a file, with the source of each value, and ends.
"""

_BETWEEN = """
Sizes are bytes, or a number with `KiB`, `MiB` or `GiB`; spans are milliseconds, or a number with a
unit, such as `500ms`, `10s` or `1m30s`. Switches are `true` or `false`; on the command line that is
`--insecure` or `--no-insecure`.

An invalid value, or an unknown key in the file, stops the start with one line that names its source
and the allowed values. An environment variable that only looks like a setting (`DWELL_HTPP`) causes
a warning.

As a file, the defaults are:

```toml
{defaults}```

## Tokens

Without `token_file` anybody who reaches a port may do everything. The server therefore listens only
on addresses of this machine, unless `insecure` is set. With a token file, every HTTP request needs
a token with the right for it:

| right | allows |
|---|---|
| `put` | put, and other verbs of producers by id or topic: get, cancel, reschedule, clear |
| `take` | take, also by body, peek, ack, release, touch and bury |
| `read` | only reading: get, peek, lists, find, events, counts, settings, schedules |
| `admin` | reading, and all other changes: settings, kick, schedules, stale, backup |
| `metrics` | only `/metrics` |

No right implies another. [The table of endpoints](http.md#endpoints) lists the right that each
endpoint needs, and on which topics. Endpoints for all topics at once (events, health, a backup)
need the right on all topics, the prefix `""`. Copies of the store and the messages that an owner
holds require `admin`, because they contain the receipts of others or the key that makes them.

{tokens}

`[anonymous]` is optional: without it, callers without a token may do nothing. It also holds the
rights of connections of the beanstalk protocol, which has no tokens. An unknown token is refused
(401), even if `[anonymous]` would allow the request.

`dwell token` makes a token and its entry. The file must not be writable by others.

### Quotas

A `quota` limits the data and the requests of one token. `[anonymous]` may have a quota too, shared
by all callers without a token. A limit that is left out does not apply.

| quota | bounds | over it |
|---|---|---|
| `topics` | topics with messages, and new topics by their settings | 507 `StoreFull` |
| `pending` | messages, whatever their state | 507 `StoreFull` |
| `stored_bytes` | ids of callers, keys, headers and bodies of these | 507 `StoreFull` |
| `requests_per_s` | requests, also refused ones; a second's allowance may come at once | 429 |
| `streams` | open streams of push and watch | 429 `ServerBusy`, `Retry-After` |

The error names the quota, its value and the token. Over the beanstalk protocol the error is
`OUT_OF_MEMORY`, for all pipelined puts that arrived together, and each command counts as a request.

`topics`, `pending` and `stored_bytes` count all messages in the topics where the token may put,
whoever put them, so tenants that share a prefix share its quota. The server counts the store about
once a second (every five seconds with very many topics), and adds the messages that it accepted
since and those in progress. So no burst exceeds a quota, even in many concurrent requests, and
acked messages make room at the next count. Until the result of a put is known, all of its messages
count as new, including replacements.

The limits are not exact for several servers on one Redis: each server adds only messages that it
accepted itself, so together they may exceed a quota by the messages that the others accept in a
second. Messages put by schedules, or by programs with direct access to the store (a relay, a worker
in the same process), are counted but not refused. A token without room cannot make a schedule.
Schedules themselves, with their bodies and headers, count in the `stored_bytes` of each token that
may change them (`admin` on `dwell:schedules`), whoever made them. `stored_bytes` works for stores
in a folder and in memory: a server on Redis refuses to start with it.

## Signals

| signal | what the server does |
|---|---|
| SIGTERM, SIGINT | accepts no more requests, answers waiting ones, closes the store, ends with 0 |
| the same again | ends at once with 130; no answered change is lost |
| SIGUSR1 | drains: accepts no new messages but follow-ups, fires no schedules; the rest continues |
| SIGHUP | reloads the token file and the certificate; keeps the old files if either is invalid |

Requests that are not answered `grace_ms` after SIGTERM are cut off. Closing the store does not
count against the grace; it writes a snapshot, which saves the next start the work.

If the server cannot start, it ends with one line on standard error and an [exit
code](cli.md#exit-codes): 2 for settings, 3 for a store that is missing, locked or damaged and for
an address that is not available.

## Logs

One line an event, on standard error. With `log_format = "text"`: time, level, logger, message, then
`name=value` for each field. With `"json"` an object a line, with `time`, `level`, `logger`,
`message`, the fields, and `error`, a traceback, if any. The times are UTC. Control characters from
callers are escaped. The first line says `serving`, with the address of each port.

### Requests and changes

Two more logs are off by default. Each line is a JSON object with `time`, `port` (`http`,
`beanstalk` or `signal`), `peer` (the address of the other end, which behind a proxy is the proxy)
and `token`, the name of the token, or empty.

- `access_log`: one line for each answered request, with `method`, `path`, `status`,
  `in_bytes`, `out_bytes` and `ms`. The path is the template of the endpoint
  (`/v1/topics/{{topic}}/messages`), or empty without an endpoint: no topic, id or query is logged.
  The line of a stream is written when the stream ends. Over beanstalk the method is the command,
  `count` the number of commands that came together, and the status the first word of the reply.
- `audit_log`: one line for each request, refused or not, that changes shared state:
  settings of topics, schedules (also as messages of `dwell:schedules`), `clear`, cancel, reschedule
  and kick by a filter, kick by ids, `find-stale` with `repair`, a backup, and over beanstalk
  `kick`, `kick-job` and `pause-tube`. It has `endpoint`, `status`, and the change: the topic
  or the name, the settings or the filter, and the number of messages. Signals that drain or reload
  are logged too. The usual work of producers and workers (put, take, ack, cancel by ids) is not.

A line has at most 4,096 bytes; values from callers are cut and escaped. A file of more than
`max_log_bytes` is renamed to `FILE.1`, replacing the previous one, and a new file is started.
Links, pipes and other special files are not renamed. If another program renames the file, the
server starts a new file too. A thread writes the lines, so that no request waits for them. Lines
that come faster than they can be written are dropped; a line gives their number (`dropped`), as
does `dwell_log_dropped_lines_total` of `/metrics`. The last lines before a crash may be missing.
"""


def _table() -> str:
    lines = ["| setting | default | what it means |", "|---|---|---|"]
    lines += [f"| {_names(field)} | {_default(field)} | {_meaning(field)} |" for field in _all()]
    return "\n".join(lines) + "\n"


def _all() -> list[Field]:
    return list(FIELDS.values())


def _names(field: Field) -> str:
    option = "`STORE`" if field.name == "store" else f"`{field.flag}`"
    return f"`{field.name}`<br>{option}<br>`{field.env}`"


def _default(field: Field) -> str:
    if field.kind is bool:
        return "`false`"
    return f"`{field.shown}`" if field.shown else ""


def _meaning(field: Field) -> str:
    is_told = field.choices or field.kind is int
    return f"{field.about} Allowed: {field.allowed}." if is_told else field.about


def _tokens() -> str:
    """Return what the module says of the file, as Markdown."""
    doc = (inspect.getdoc(tokens) or "").partition("\n\n")[2].replace("``", "`")
    block = re.compile(r"::\n\n((?:    .*\n|\n)+)")
    return block.sub(_fenced, doc)


def _fenced(found: re.Match[str]) -> str:
    return f":\n\n```toml\n{textwrap.dedent(found[1]).strip()}\n```\n\n"


def _sections() -> Iterator[str]:
    yield _HEAD
    yield _table()
    plain = Loaded(ServerSettings(), dict.fromkeys(FIELDS, DEFAULT), [])
    defaults = re.sub(r" *# default$", "", show(plain), flags=re.MULTILINE)
    yield _BETWEEN.format(defaults=defaults, tokens=_tokens())


def render() -> str:
    """Return what the page has to be."""
    return "\n".join(_sections()).replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(render())
