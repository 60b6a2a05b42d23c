"""``dwell relay``: delay messages of a broker, and publish them when they are due."""

import logging
from typing import Annotated, Any

import typer

from dwell.cli.session import session_of
from dwell.relay.settings import RelaySettings


def _option(
    about: str, name: str | None = None, metavar: str | None = None, envvar: str | None = None
) -> Any:
    return typer.Option(*([name] if name else []), help=about, metavar=metavar, envvar=envvar)


_Text = str | None
_From = Annotated[
    _Text,
    _option(
        "Where records come from: kafka://HOST:PORT/TOPIC, amqp://HOST/VHOST?queue=NAME, "
        "outbox+postgresql://HOST/DATABASE.",
        "--from",
        "URL",
        "DWELL_FROM",
    ),
]
_To = Annotated[
    _Text,
    _option(
        "Where they go: kafka://HOST:PORT, or with /TOPIC; amqp://HOST/VHOST, or with "
        "?queue=NAME or ?exchange=NAME.",
        "--to",
        "URL",
        "DWELL_TO",
    ),
]
_Topics = Annotated[
    list[str] | None,
    _option("Without --from: a topic of the store that --to is to get.", "--topic"),
]
_Due = Annotated[_Text, _option("When a record falls due where no header says it: JMESPath.")]
_Delay = Annotated[_Text, _option("Or after how long, in the same way.")]
_Default = Annotated[_Text, _option("Or for all that say nothing: 30m.", metavar="SPAN")]
_Target = Annotated[_Text, _option("The topic that it goes to, if no header says it: JMESPath.")]
_Hold = Annotated[str, _option("The topic that holds records; lanes have theirs after it.")]
_Dead = Annotated[str, _option("The topic for records without due or target, and refused ones.")]
_Once = Annotated[bool, _option("From Kafka to Kafka, in transactions.", "--exactly-once")]
_Events = Annotated[
    bool, _option("In place of messages, send the queue's events as they happen.", "--events")
]
_Remember = Annotated[
    str, _option("How long ids are known after their records left.", None, "SPAN")
]
_Lease = Annotated[str, _option("When another relay gets what one that died had.", None, "SPAN")]
_Batch = Annotated[int, _option("How many records are read or sent at once.")]
_Http = Annotated[_Text, _option("Where /metrics, /healthz and /readyz are.", None, "HOST:PORT")]


def relay(
    context: typer.Context,
    source: _From = None,
    sink: _To = None,
    topics: _Topics = None,
    due: _Due = None,
    delay: _Delay = None,
    default_delay: _Default = None,
    target: _Target = None,
    hold: _Hold = "relay",
    dead: _Dead = "relay-dead",
    exactly_once: _Once = False,
    events: _Events = False,
    remember: _Remember = "10m",
    lease: _Lease = "30s",
    batch: _Batch = 5_000,
    http: _Http = None,
) -> None:
    """Hold a broker's messages until they are due, and send them on, until SIGTERM or Ctrl-C.

    `--store` holds them. Any number of relays share the work over one server or Redis. Without
    `--to` messages stay in the store, for workers; without `--from` due messages of the store
    leave.
    """
    said = dict(locals())
    session = session_of(said.pop("context"))
    settings = RelaySettings(**{**said, "topics": tuple(topics or ())})
    level = logging.ERROR if session.out.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Imported here, as only a relay needs these packages.
    from dwell.relay.process import run

    run(session.store, settings)
