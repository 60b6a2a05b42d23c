"""A put of which only a part was done."""

import numpy as np

from dwell.batch.puts import Put, PutAnswer
from dwell.errors import DwellError, ServerUnreachable


class PartlyPut(Exception):
    """A store of several shards put a part of a batch, and refused the other.

    ``answer`` is that of the whole batch, and means nothing for the messages that were
    ``refused`` (a column of truth values); ``error`` says why they were, and is what callers are
    told of it.
    """

    def __init__(self, error: DwellError, answer: PutAnswer, refused: np.ndarray) -> None:
        super().__init__(f"{error}; {int((~refused).sum())} of the batch were put all the same")
        self.error, self.answer, self.refused = error, answer, refused

    def completed(self, rest: PutAnswer) -> PutAnswer:
        """Return the answer, when what was refused was put after all."""
        places = np.flatnonzero(self.refused)
        ids = list(self.answer.ids)
        for place, id_ in zip(places.tolist(), rest.ids, strict=True):
            ids[place] = id_
        results, numbers = self.answer.results.copy(), self.answer.numbers.copy()
        results[places], numbers[places] = rest.results, rest.numbers
        return PutAnswer(ids, results, numbers)

    def part(self, places: slice) -> "PartlyPut":
        """Return what it says of some of the messages."""
        return PartlyPut(self.error, self.answer[places], self.refused[places])

    @property
    def is_unsure(self) -> bool:
        """Whether what was refused may have been put all the same, and is not to be put again."""
        return isinstance(self.error, ServerUnreachable)

    def answers(self) -> list[Put | DwellError | None]:
        """Return what became of each message; where it was refused None, if it may be put again."""
        told = self.error if self.is_unsure else None
        refused = enumerate(self.refused.tolist())
        return [told if is_refused else self.answer[at] for at, is_refused in refused]

    def told(self) -> DwellError:
        """Return the error as who put the whole batch is told it."""
        return type(self.error)(str(self))
