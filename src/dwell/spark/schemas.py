"""The columns of each view, and the columns of a write."""

#: A message, in the view ``due``.
DUE = (
    "topic STRING NOT NULL, id STRING NOT NULL, body BINARY NOT NULL, due TIMESTAMP NOT NULL, "
    "state STRING NOT NULL, priority BIGINT NOT NULL, attempt INT NOT NULL, "
    "max_attempts INT NOT NULL, lease_ms BIGINT NOT NULL, lease_until TIMESTAMP, "
    "died TIMESTAMP, expires TIMESTAMP, key STRING, headers MAP<STRING, STRING>, "
    "last_error STRING, number BIGINT NOT NULL"
)

#: A message, in the view ``messages``.
MESSAGES = f"{DUE}, version BIGINT"

#: An event of a message, in the view ``events``.
EVENTS = (
    "position BIGINT NOT NULL, time TIMESTAMP NOT NULL, kind STRING NOT NULL, "
    "topic STRING NOT NULL, id STRING NOT NULL, due TIMESTAMP NOT NULL, attempt INT NOT NULL"
)

VIEWS = {"messages": MESSAGES, "events": EVENTS, "due": DUE}
