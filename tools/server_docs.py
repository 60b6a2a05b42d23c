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

`pip install 'dwell[cli,server]'` brings `dwell serve [STORE]`: one process that opens a store and
serves it over HTTP and the beanstalk protocol. How to run it in earnest stands on the page
[operate](../howto/operate.md).

## Settings

Each setting has one name in three forms: an option, an environment variable, and a key of the TOML
file that `--config` or `DWELL_CONFIG` names. The option counts before the variable, the variable
before the file, the file before the default. A variable that is empty counts as not set. Paths are
relative to the folder that the server was started in. `dwell serve --show-config` prints what
results, with the source of each value, and ends; what it prints is such a file.
"""

_BETWEEN = """
Sizes are bytes, or a number with `KiB`, `MiB` or `GiB`; spans are milliseconds, or a number with a
unit, such as `500ms`, `10s` or `1m30s`. Switches are `true` or `false`; on the command line that is
`--insecure` or `--no-insecure`.

A value that is not allowed, and a key of the file that is no setting, stop the start with one line
that says where it stood and what is allowed. An environment variable that only looks like a setting
(`DWELL_HTPP`) is named in a warning.

As a file, the defaults are:

```toml
{defaults}```

## Tokens

Without `token_file` everybody who reaches a port may do everything, and so the server listens only
where nobody but this machine reaches it, unless it is told `insecure`. With one, every request over
HTTP needs a token with the right it asks for:

| right | allows |
|---|---|
| `put` | to put, and what a producer does by id or topic: get, cancel, reschedule, clear |
| `take` | to take, also by body, peek, ack, release, touch and bury |
| `read` | to look, and nothing else: get, peek, lists, find, events, counts, settings, schedules |
| `admin` | to look, too, and to change all else: settings, kick, schedules, stale, backup |
| `metrics` | `/metrics`, and nothing else |

No right implies another; [the table of endpoints](http.md#endpoints) has what each of them needs,
and on which topics. What touches all topics at once (events, health, a backup) needs the right on
all topics, the prefix `""`. Copies of the store, and what an owner holds, are for `admin`: they
have the receipts of others, or what makes them.

{tokens}

`[anonymous]` is optional: left out, callers without a token may do nothing. It is also all that
connections of the beanstalk protocol may do, since that protocol has no way to show a token. A
token that is unknown is refused (401), even where `[anonymous]` would do.

`dwell token` makes a token and its entry. The file must not be writable by others.

### Quotas

A `quota` bounds what one token may have and ask for; `[anonymous]` may have one, too, which all
callers without a token share. What is left out is bounded by the server only.

| quota | bounds | over it |
|---|---|---|
| `topics` | topics with messages, and new topics by their settings | 507 `StoreFull` |
| `pending` | messages, whatever their state | 507 `StoreFull` |
| `stored_bytes` | ids of callers, keys, headers and bodies of these | 507 `StoreFull` |
| `requests_per_s` | requests, refused ones too; what it allows in a second may come at once | 429 |
| `streams` | streams of push and watch that run | 429 `ServerBusy`, `Retry-After` |

The error names the quota, its value and the token; over the beanstalk protocol it is
`OUT_OF_MEMORY`, also for all puts of a pipeline that came together, and each command is a request.

`topics`, `pending` and `stored_bytes` count what lies in the topics to which the token may put,
whoever has put it there: tenants that share a prefix share what is there. The server looks into
the store about once a second (where there are very many topics, every five), and adds what it
accepted since and what is under way. So no burst gets over a quota, in many requests at once
either, and messages that are done make room with the next look. Until it is known what became of a
put, all of its messages count as new, those that would replace others too.

Not exact: of several servers on one Redis each adds only what it accepted itself, so that together
they may go over by what the others accept in a second. What schedules put and what is put by who
has the store in another way (a relay, a worker in the same process) is no request of a token: it
is counted, and not refused; a schedule is refused to a token that has no room when it makes it.
Schedules themselves, with their bodies and headers, count in the `stored_bytes` of each token that
may change them (`admin` on `dwell:schedules`), whoever has made them.
`stored_bytes` is for stores in a folder and in memory: a server on Redis does not begin with it.

## Signals

| signal | what the server does |
|---|---|
| SIGTERM, SIGINT | accepts no more, answers what waits, closes the store, ends with 0 |
| the same again | ends at once with 130; nothing that was answered is lost |
| SIGUSR1 | drains: takes no new messages any more and fires no schedules, everything else goes on |
| SIGHUP | reads the token file and the certificate again; keeps the old ones if one is wrong |

What is still not answered `grace_ms` after SIGTERM is cut off. Closing the store takes no part of
the grace; it writes a snapshot, which a start would otherwise make up for.

When it cannot begin, it ends with one line on standard error and an
[exit code](cli.md#exit-codes): 2 for settings, 3 for a store that is missing, locked or damaged and
for an address that it cannot have.

## Logs

One line an event, on standard error. With `log_format = "text"`: time, level, logger, message, then
`name=value` for each field. With `"json"` an object a line, with `time`, `level`, `logger`,
`message`, the fields, and `error`, a traceback, where there is one. The times are UTC. Control
characters of strangers are escaped. The first line says `serving`, with the address of each port.

### Requests and changes

Two more logs are off unless they are asked for. Each line is an object of JSON with `time`, `port`
(`http`, `beanstalk` or `signal`), `peer` (the address of the other end, which behind a proxy is the
proxy) and `token`, its name, empty for a caller without one.

- `access_log`: one line for each request that has its answer, with `method`, `path`, `status`,
  `in_bytes`, `out_bytes` and `ms`. The path is the template of the endpoint
  (`/v1/topics/{{topic}}/messages`), empty where there is none: no topic, id or query is logged. A
  stream has its line when it ends. Over beanstalk the method is the command, `count` how many came
  together, and the status the first word of the reply.
- `audit_log`: one line for each request that changes what others rely on, refused ones too:
  settings of topics, schedules (also as messages of `dwell:schedules`), `clear`, cancel, reschedule
  and kick by a filter, kick by ids, `find-stale` with `repair`, a backup, and over beanstalk
  `kick`, `kick-job` and `pause-tube`. It has `endpoint`, `status`, and what was changed: the topic
  or the name, the settings or the filter, and how many. Signals that drain or reload are lines,
  too. What a producer or a worker does all day (put, take, ack, cancel by ids) is not in it.

A line has at most 4,096 bytes, and what callers gave is cut and escaped. A file of more than
`max_log_bytes` is kept as `FILE.1`, in place of the one before, and begun anew; what is no plain
file (a link, a pipe) is not moved. One that another program moved away is begun anew, too. A thread
writes the lines, so that no request waits for them: where they come faster than they can be written
they are dropped, and a line says how many (`dropped`), as `dwell_log_dropped_lines_total` of
`/metrics` does. The last lines before a crash may be missing.
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
