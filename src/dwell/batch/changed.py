"""What a verb did to the messages that somebody selected."""

from collections import Counter
from dataclasses import dataclass

from dwell.message import Result


@dataclass(slots=True)
class Changed:
    """How many messages matched, and how many of them had which result.

    ``is_complete`` is False when there may be more that match.
    """

    matched: int
    results: Counter[Result]
    is_complete: bool
