"""The values of fields that are words, for the OpenAPI document: all of them, in order.

Only the document uses these types. A request with any other word is refused where the word is
parsed, with an error that lists the valid words.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from dwell.batch.outcome import OUTCOME_STATES
from dwell.message import Kind, Result, State


def _one_of(*words: object) -> Meta:
    return Meta(extra_json_schema={"enum": [str(word) for word in words]})


StateWord: TypeAlias = Annotated[str, _one_of(*(state for state in State if state))]
OutcomeWord: TypeAlias = Annotated[str, _one_of(*OUTCOME_STATES)]
ResultWord: TypeAlias = Annotated[str, _one_of(*Result)]
PutWord: TypeAlias = Annotated[
    str, _one_of(Result.CREATED, Result.KEPT, Result.REPLACED, Result.DROPPED, Result.LEASED)
]
KindWord: TypeAlias = Annotated[str, _one_of(*Kind)]
ConflictWord: TypeAlias = Annotated[str, _one_of("keep", "replace", "error")]
StaleWord: TypeAlias = Annotated[str, _one_of("no body", "no state", "no message")]
