"""The result of a verb on selected messages."""

from collections import Counter
from dataclasses import dataclass

from dwell.message import Result


@dataclass(slots=True)
class Changed:
    """How many messages matched, and the number of messages with each result.

    ``is_complete`` is False if more messages may match.
    """

    matched: int
    results: Counter[Result]
    is_complete: bool
