"""The options of the data source: Spark's texts, validated."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

import dwell
from dwell.digits import number_of
from dwell.errors import InvalidSettings, InvalidUrl
from dwell.given import values
from dwell.handle import Handle

_TOKEN = "DWELL_TOKEN"
_REMOTE = ("http://", "https://", "http+unix://", "redis", "valkey")

#: Options that Spark itself adds for a stream or a path.
_OF_SPARK = {"path", "checkpointlocation", "querytype", "queryname"}


def _plain(name: str) -> str:
    return name.replace("_", "")


#: A task waits about a minute for a server that is restarting.
_RETRIES = 36

Rows = Annotated[int, Meta(ge=1, le=10_000_000)]


class Place(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_plain):
    """The address of the queue."""

    url: str
    token: str | None = None
    ca: str | None = None
    timeout: Annotated[float, Meta(gt=0)] = 60.0

    def opened(self) -> Handle:
        """Return the queue, not open yet; raises InvalidUrl unless it is on a server."""
        if not self.url.startswith(_REMOTE):
            raise InvalidUrl(
                f"url: got {self.url!r:.200}, which one process at a time can open, and Spark is "
                f"many; run `dwell serve {self.url}` and give its address, http://host:8410"
            )
        if not self.url.startswith("http"):
            return dwell.open(self.url, ca=self.ca, timeout=self.timeout)
        return dwell.open(
            self.url, token=self.token, ca=self.ca, timeout=self.timeout, retries=_RETRIES
        )


class ReadOptions(Place, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_plain):
    """How to read: ``topics`` is a list with commas; ``partitions`` 0 means by size.

    ``start_position`` and ``end_position`` are for events, ``lease`` and ``owner`` for due
    messages.
    """

    view: Literal["messages", "events", "due"] = "messages"
    topics: str = ""
    partitions: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max_rows_per_batch: Rows | None = None
    start_position: Annotated[int, Meta(ge=0)] | Literal["earliest", "latest"] = "earliest"
    end_position: Annotated[int, Meta(ge=0)] | None = None
    fail_on_data_loss: bool = True
    lease: str = "5m"
    owner: str = ""

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics in the option."""
        return tuple(name.strip() for name in self.topics.split(",") if name.strip())

    def check(self) -> None:
        """Refuse options that do not fit the view; raises InvalidInput."""
        if self.view != "due":
            return
        if not self.topic_names:
            raise InvalidSettings("topics: got none, expected one or more, with commas between")
        values.topics(self.topic_names)
        values.lease_ms(self.lease)


class WriteOptions(Place, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_plain):
    """How to write: the verb for each row, and the handling of refused rows.

    ``bad_rows`` is a folder or URI for refused rows, ``counts`` a file of the driver for the number
    of rows by result, ``batch`` how many rows are sent at a time, ``write_name`` distinguishes this
    write from others of its micro-batch.
    """

    op: Literal["put", "cancel", "reschedule", "kick"] = "put"
    topic: str | None = None
    on_conflict: Literal["keep", "replace", "error"] = "keep"
    bad_rows: str | None = None
    counts: str | None = None
    batch: Annotated[int, Meta(ge=1, le=10_000)] = 5000
    write_name: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,64}$")] | None = None


T = TypeVar("T", ReadOptions, WriteOptions)


def parsed(kind: type[T], given: Mapping[str, str]) -> T:
    """Return the options that Spark was given; raises InvalidSettings."""
    plain = {key.lower(): value for key, value in given.items() if not _is_of_spark(key)}
    if "token" not in plain and os.environ.get(_TOKEN):
        # Known to the driver only; from here on it is part of the options.
        plain["token"] = os.environ[_TOKEN]
    numbers = {key: _number(value) for key, value in plain.items() if key.endswith("position")}
    try:
        return msgspec.convert(plain | numbers, kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise InvalidSettings(f"options: {error}; expected {known}") from None


def _is_of_spark(key: str) -> bool:
    # A table of the catalog has each option twice, once with this prefix.
    return key.lower() in _OF_SPARK or key.lower().startswith("option.")


def _number(text: str) -> Any:
    number = number_of(text, 19)
    return text if number is None else number
