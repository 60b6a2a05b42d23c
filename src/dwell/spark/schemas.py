"""The columns of each view, and those that a write knows."""

#: A message, as the view ``due`` shows it.
DUE = (
    "topic STRING NOT NULL, id STRING NOT NULL, body BINARY NOT NULL, due TIMESTAMP NOT NULL, "
    "state STRING NOT NULL, priority BIGINT NOT NULL, attempt INT NOT NULL, "
    "max_attempts INT NOT NULL, lease_ms BIGINT NOT NULL, lease_until TIMESTAMP, "
    "died TIMESTAMP, expires TIMESTAMP, key STRING, headers MAP<STRING, STRING>, "
    "last_error STRING, number BIGINT NOT NULL"
)

#: A message, as the view ``messages`` shows it.
MESSAGES = f"{DUE}, version BIGINT"

#: One thing that happened to one message, as the view ``events`` shows it.
EVENTS = (
    "position BIGINT NOT NULL, time TIMESTAMP NOT NULL, kind STRING NOT NULL, "
    "topic STRING NOT NULL, id STRING NOT NULL, due TIMESTAMP NOT NULL, attempt INT NOT NULL"
)

VIEWS = {"messages": MESSAGES, "events": EVENTS, "due": DUE}
