"""The words that fields may hold, as the OpenAPI document has them: all there are, in order.

The document names them and requests are not decoded by it: a word that is none of them is refused
where it is understood, with an error that says which there are.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

from dwell.message import Kind, Result, State


def _one_of(*words: object) -> Meta:
    return Meta(extra_json_schema={"enum": [str(word) for word in words]})


StateWord: TypeAlias = Annotated[str, _one_of(*(state for state in State if state))]
ResultWord: TypeAlias = Annotated[str, _one_of(*Result)]
PutWord: TypeAlias = Annotated[
    str, _one_of(Result.CREATED, Result.KEPT, Result.REPLACED, Result.DROPPED, Result.LEASED)
]
KindWord: TypeAlias = Annotated[str, _one_of(*Kind)]
ConflictWord: TypeAlias = Annotated[str, _one_of("keep", "replace", "error")]
StaleWord: TypeAlias = Annotated[str, _one_of("no body", "no state", "no message")]
