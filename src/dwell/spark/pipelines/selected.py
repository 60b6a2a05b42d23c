"""Messages of the view that match a selection, as elsewhere in Dwell."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.batch.selection import ALL, Selection


def fitting(view: DataFrame, which: Selection) -> DataFrame:
    """Return the rows that match; a predicate over the body is not covered, use SQL for it.

    Conditions that are not set are not compared, so Spark pushes down only the others.
    """
    found = view
    if which.states is not None:
        found = found.where(F.col("state").isin([str(state) for state in which.states]))
    if which.due_from_ms > ALL.due_from_ms:
        found = found.where(F.col("due") >= F.timestamp_millis(F.lit(which.due_from_ms)))
    if which.due_to_ms < ALL.due_to_ms:
        found = found.where(F.col("due") < F.timestamp_millis(F.lit(which.due_to_ms)))
    if which.attempt_from > ALL.attempt_from:
        found = found.where(F.col("attempt") >= which.attempt_from)
    if which.attempt_to < ALL.attempt_to:
        found = found.where(F.col("attempt") < which.attempt_to)
    if which.key is not None:
        found = found.where(F.col("key") == which.key)
    if which.error is not None:
        found = found.where(F.col("last_error").contains(which.error))
    for name, value in which.headers.items():
        found = found.where(F.col("headers")[name] == value)
    return found
