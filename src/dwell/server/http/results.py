"""The results of a verb, as an answer: a word for each message."""

from dwell.batch.results import Results, words_of
from dwell.message import Result
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.schemas.answers import Results as ResultsAnswer


def results_answer(call: Call, results: Results | Result) -> Answer:
    """Return the result of one message or of each of many."""
    words = [str(results)] if isinstance(results, Result) else words_of(results.codes)
    return call.answer(ResultsAnswer(words))
