"""A verb that was done only in part: a put, or one on existing messages."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dwell.batch.puts import Put, PutAnswer
from dwell.batch.results import counts_of
from dwell.errors import DwellError, ServerUnreachable
from dwell.message import U8, Result


class PartlyPut(Exception):
    """A store of several shards put a part of a batch, and refused the rest.

    ``answer`` covers the whole batch, and is meaningless for the ``refused`` messages (a column of
    truth values); ``error`` is the reason, which callers get.
    """

    def __init__(self, error: DwellError, answer: PutAnswer, refused: np.ndarray) -> None:
        super().__init__(f"{error}; {int((~refused).sum())} of the batch were put all the same")
        self.error, self.answer, self.refused = error, answer, refused

    def completed(self, rest: PutAnswer) -> PutAnswer:
        """Return the answer, after the refused messages were put."""
        places = np.flatnonzero(self.refused)
        ids = list(self.answer.ids)
        for place, id_ in zip(places.tolist(), rest.ids, strict=True):
            ids[place] = id_
        results, numbers = self.answer.results.copy(), self.answer.numbers.copy()
        results[places], numbers[places] = rest.results, rest.numbers
        return PutAnswer(ids, results, numbers)

    def part(self, places: slice) -> "PartlyPut":
        """Return the result for some of the messages."""
        return PartlyPut(self.error, self.answer[places], self.refused[places])

    @property
    def is_unsure(self) -> bool:
        """Whether the refused messages may have been put after all, and must not be put again."""
        return isinstance(self.error, ServerUnreachable)

    def answers(self) -> list[Put | DwellError | None]:
        """Return the result of each message; None for a refused message that may be put again."""
        told = self.error if self.is_unsure else None
        refused = enumerate(self.refused.tolist())
        return [told if is_refused else self.answer[at] for at, is_refused in refused]

    def told(self) -> DwellError:
        """Return the error for the caller of the whole batch."""
        told = type(self.error)(str(self))
        told.is_partly = True
        # Told apart from the text, so that callers who count can count it.
        told.put_before = counts_of(self.answer.results[~self.refused])
        return told


def results_before(error: DwellError) -> Counter[Result]:
    """Return how many messages of a put that an error ended were put all the same."""
    return Counter(error.put_before)


class Told:
    """The results of a verb for the messages of a batch, of which each shard tells a part."""

    def __init__(self, size: int, default: Result) -> None:
        self.codes: U8 = np.full(size, default, np.uint8)
        self.errors: dict[int, DwellError] = {}

    def fail(self, places: Sequence[int], error: DwellError) -> None:
        """Note the error of a call about some messages, the first of which it may have done."""
        done = [one for one in error.each if not isinstance(one, DwellError)]
        for at, code in zip(places, done, strict=False):
            self.codes[at] = code
        cause = error.each[len(done)] if error.each else error
        self.errors |= dict.fromkeys(places[len(done) :], cause)

    def answer(self) -> U8:
        """Return the codes of the results; raises an error if some messages have one."""
        if not self.errors:
            return self.codes
        raise partly_done(
            [self.errors.get(at, code) for at, code in enumerate(self.codes.tolist())]
        )


def partly_done(each: Sequence[int | DwellError]) -> DwellError:
    """Return the error for the caller of a batch, from the code or the error of each message."""
    errors = [one for one in each if isinstance(one, DwellError)]
    # An unknown outcome matters more than a refusal.
    error = next((one for one in errors if isinstance(one, ServerUnreachable)), errors[0])
    if all(one is error for one in each):
        return error
    done = len(each) - len(errors)
    told = type(error)(f"{error}; {done} of the batch were done all the same" if done else error)
    told.is_partly, told.each = done > 0, each
    return told
