"""Then: a message that is to be put in the same step as an ack."""

from typing import Unpack

from dwell.given.options import PutOptions, refuse_unknown


class Then:
    """A follow-up for :meth:`dwell.Queue.ack`, and for a worker's handler to return.

    It takes the arguments of :meth:`dwell.Queue.put`; times count from the ack. ``result`` is what
    the ack keeps as the result of the message that is done.
    """

    __slots__ = ("body", "options", "result", "topic")

    def __init__(
        self, topic: str, body: object, *, result: object = None, **options: Unpack[PutOptions]
    ) -> None:
        refuse_unknown(options, PutOptions, "Then")
        self.topic, self.body, self.result, self.options = topic, body, result, options

    def __repr__(self) -> str:
        return f"Then({self.topic!r}, {self.body!r:.80})"
