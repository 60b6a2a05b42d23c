"""Make docs/reference/cli.md, the reference of the command line.

``python -m tools.cli_docs`` writes it anew from the commands themselves.
"""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from dwell.cli.app import GROUPS, app
from dwell.cli.exits import MEANINGS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

_HEAD = """<!-- Made by `python -m tools.cli_docs` from src/dwell/cli: change that. -->
# The command line

`pip install 'dwell[cli]'` installs the command `dwell`, which works on the store that `--store`
names. An embedded store belongs to one process at a time: while a worker or a server has it open,
the command fails with `StoreLocked`.

```
dwell [--store URL] [--json] [--quiet] COMMAND ...
```

Answers go to standard output, everything else to standard error; an error is one line that begins
with its class. Only `put`, `import` and a change of `settings` create a missing store.

With `--json`, standard output holds one JSON object a line. A message has the fields of
`dwell.Message`; its body is `body` when it is UTF-8 text, else `body_base64`. Tables for people
show such a body as `base64:` and the text, times in the zone of the machine, and control characters
as escapes.
"""

_LINES = """
### Lines for `put --many`

One JSON object a line; every field but the body may be left out.

| field | value |
| --- | --- |
| `body` | text, put as it is; or any other JSON, put as it is written |
| `body_base64` | the body as base64, in place of `body` |
| `id` `priority` `lease` `ttl` `key` `max_attempts` `delay` `delay_level` `due` | as the options |
| `due_ms` | epoch milliseconds, in place of `due` |
| `headers` | an object of texts |

An error names the line. With your own ids, putting the whole file again is harmless, since existing
ids are kept.
"""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("|" + "|".join(f" {cell} " for cell in line) + "|" for line in lines)


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar}`"
    value = "" if param.is_flag else f" {param.metavar}"
    return ", ".join(f"`{name}{value}`" for name in param.opts)


def _meaning(param: Any) -> str:
    """Return the help of an option, with where its value comes from when it is left out."""
    text = str(param.help)
    if param.envvar:
        text += f" Or from the environment: `{param.envvar}`."
    if param.param_type_name == "option" and param.default not in (None, False, ""):
        text += f" Default: `{param.default}`."
    return text


def _params(command: Any) -> str:
    rows = [[_name(param), _meaning(param)] for param in command.params]
    return _table(["argument or option", "meaning"], rows) + "\n" if rows else ""


def _usage(command: Any) -> str:
    words = ["dwell", command.name]
    has_options = any(param.param_type_name == "option" for param in command.params)
    for param in command.params:
        if param.param_type_name == "argument":
            word = param.metavar if param.required else f"[{param.metavar}]"
            words.append(word + ("..." if param.nargs == -1 else ""))
    return " ".join([*words, "[OPTIONS]"] if has_options else words)


def _sections() -> Iterator[str]:
    group: Any = get_command(app)
    yield _HEAD
    yield "## Options for all commands\n\n" + _params(group)
    exits = [[str(code.value), meaning] for code, meaning in MEANINGS.items()]
    yield "## Exit codes\n\n" + _table(["code", "meaning"], exits) + "\n"
    for title, commands in GROUPS.items():
        yield f"## {title}\n"
        for given in commands:
            command = group.commands[given.name]
            yield f"### {given.name}\n\n```\n{_usage(command)}\n```\n"
            yield f"{inspect.getdoc(given.function)}\n\n```\n{given.example}\n```\n"
            yield _params(command)
            yield _LINES.lstrip() if given.name == "put" else ""


def render() -> str:
    """Return what the page has to be."""
    return "\n".join(section for section in _sections() if section)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render())
