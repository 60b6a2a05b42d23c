"""Bring back messages that are dead or have piled up: paced, spread, or copied to other topics.

The messages are selected in SQL over the columns of the view ``messages``. Over a limit,
unimportant messages can be dropped. A table records what was done.
"""

import sys
from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from dwell.batch.selection import Selection
from dwell.errors import InvalidSettings
from dwell.given import values
from dwell.given.selecting import select
from dwell.message import MAX_ID_BYTES
from dwell.spark.pipelines import decision, expressions, pace, selected, sink
from dwell.spark.pipelines.command import main
from dwell.spark.pipelines.pace import START_FORM

Text = str | None

_TIME = "ISO 8601 with a zone, or epoch milliseconds."
_PLACE, _NEW_DUE = "place", "new_due_ms"
_CHOSEN, _DECIDED = "chosen", "decided"
_WHAT, _BACK, _OVER = "what", "back", "over"
_KNOWN = ("topic", "id", "due", "attempt", "last_error", "version")
_COPIED = ("body", "priority", "key", "headers", "max_attempts")
_VERBS = {"dead": "kick", "ready": "reschedule", "delayed": "reschedule"}
_RESULTS = {"kick": "kicked", "reschedule": "moved", "copy": "copied"}


class RedriveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages, and their treatment."""

    url: Annotated[str, Meta(description="The queue: the address of a server.")]
    topics: Annotated[list[str], Meta(description="Only the messages of this topic.")] = []
    state: Annotated[
        Literal["dead", "ready", "delayed"],
        Meta(description="Only messages in this state."),
    ] = "dead"
    key: Annotated[Text, Meta(description="Only messages with this key.")] = None
    header: Annotated[dict[str, str], Meta(description="Only messages with this header.")] = {}
    error: Annotated[
        Text, Meta(description="Only messages whose last error has this text in it.")
    ] = None
    attempt_from: Annotated[
        int | None, Meta(description="Only messages with so many attempts or more.")
    ] = None
    attempt_to: Annotated[int | None, Meta(description="Only messages with fewer attempts.")] = None
    due_from: Annotated[Text, Meta(description=f"Only messages due then or later: {_TIME}")] = None
    due_to: Annotated[Text, Meta(description=f"Only messages due before: {_TIME}")] = None
    where: Annotated[
        Text, Meta(description="Only these, in SQL: \"last_error LIKE '%timeout%'\".")
    ] = None
    pace: Annotated[
        Text,
        Meta(description='No more than so many fall due at once: "5000/s", "300/m" or "1000/h".'),
    ] = None
    spread: Annotated[
        Text, Meta(description='Each due moves back by a part of this span: "30m".')
    ] = None
    start: Annotated[
        Text, Meta(description=f"When the first falls due: {START_FORM}. Default: now.")
    ] = None
    order_by: Annotated[
        list[str],
        Meta(
            description='Which come first, in SQL, with "desc" after it for the other way round. '
            "Default: priority, due."
        ),
    ] = []
    limit: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="How many are brought back; the others stay."),
    ] = None
    skip: Annotated[
        bool, Meta(description="Drop the others instead: cancel what is over the limit.")
    ] = False
    copy_to: Annotated[
        list[str],
        Meta(description="Put a copy into this topic, and leave the message where it is."),
    ] = []
    checkpoint: Annotated[
        Text,
        Meta(
            description="A folder for what was decided, until all of it is done: a run that was "
            "killed is ended by the next one with the same settings. Default: one of this run's."
        ),
    ] = None
    history: Annotated[
        Text, Meta(description="A Parquet table, to which is added what is done to each message.")
    ] = None
    dry_run: Annotated[bool, Meta(description="Count, and change nothing.")] = False

    def __post_init__(self) -> None:
        """Refuse settings that do not go together; raises InvalidInput."""
        for name in (*self.topics, *self.copy_to):
            values.topic(name)
        self.which()
        pace.pace(self.pace)
        pace.start_ms(self.start)
        if self.spread is not None:
            values.delay_ms(self.spread, "--spread")
        if self.skip and self.limit is None:
            raise InvalidSettings("--skip: got it without --limit, over which it would drop")

    def which(self) -> Selection:
        """Return the selection of messages, without its SQL; raises InvalidInput."""
        return select(
            state=self.state,
            key=self.key,
            headers=self.header,
            error=self.error,
            attempt_from=self.attempt_from,
            attempt_to=self.attempt_to,
            due_from=self.due_from,
            due_to=self.due_to,
        )

    @property
    def verb(self) -> str:
        """The verb for the messages that are brought back."""
        return "copy" if self.copy_to else _VERBS[self.state]


def run(spark: SparkSession, settings: RedriveSettings) -> str:
    """Bring back the selected messages, and return how many."""
    with pace.letting_go():
        return _run(spark, settings)


def _run(spark: SparkSession, settings: RedriveSettings) -> str:
    start_ms = pace.start_ms(settings.start) or pace.now_ms()
    if settings.dry_run:
        return _would(_plan(spark, settings, start_ms), settings, start_ms)
    with decision.folder(spark, settings.checkpoint) as place:
        start_ms = _decide(spark, settings, start_ms, place)
        plan = _decided(spark, place, start_ms)
        # The table comes first: if the run were killed after the verbs, there would be no record of
        # them. A run killed after the table is started again, and adds the same rows once more.
        if settings.history is not None:
            _keep_history(plan, settings)
        done = _bring_back(plan, settings)
        dropped = _drop(plan, settings)
        decision.forget(spark, place, _CHOSEN, _DECIDED)
    return _did(plan, settings, done, dropped, start_ms)


# --- which messages -------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """The plan: messages ``back`` with new dues, messages ``over`` to be dropped, and counts."""

    back: DataFrame
    over: DataFrame
    chosen_count: int
    back_count: int
    over_count: int
    last_ms: int


def _decide(spark: SparkSession, settings: RedriveSettings, start_ms: int, place: str) -> int:
    """Write the plan to files, unless it is there; return when the first message falls due.

    The view changes with the first verb, and Spark reads it again if it has lost data: so the verbs
    use only the files, and the view is not read again.
    """
    found = decision.unfinished(spark, place, settings)
    if found is not None:
        return int(found["start_ms"])
    plan = _plan(spark, settings, start_ms, place)
    back = plan.back.withColumn(_WHAT, F.lit(_BACK))
    over = plan.over.withColumn(_WHAT, F.lit(_OVER))
    decision.kept(back.unionByName(over, allowMissingColumns=True), place, _DECIDED)
    decision.seal(spark, place, settings, start_ms=start_ms, chosen=plan.chosen_count)
    return start_ms


def _decided(spark: SparkSession, place: str, start_ms: int) -> _Plan:
    """Return the plan in the files."""
    rows = decision.found(spark, place, _DECIDED)
    about = decision.about(spark, place)
    assert about is not None
    back, over = (rows.where(F.col(_WHAT) == what) for what in (_BACK, _OVER))
    return _counted(back, over, int(about["chosen"]), start_ms)


def _counted(back: DataFrame, over: DataFrame, chosen_count: int, start_ms: int) -> _Plan:
    counts = back.agg(F.count(F.lit(1)), F.max(_NEW_DUE)).first()
    assert counts is not None
    return _Plan(back, over, chosen_count, counts[0], over.count(), counts[1] or start_ms)


def _plan(
    spark: SparkSession, settings: RedriveSettings, start_ms: int, place: str | None = None
) -> _Plan:
    """Return the plan; with a ``place``, made from the selection stored there."""
    chosen = _chosen(spark, settings, place)
    back, over = chosen, chosen.limit(0)
    if settings.limit is not None:
        back = chosen.where(F.col(_PLACE) < settings.limit)
        over = chosen.where(F.col(_PLACE) >= settings.limit) if settings.skip else over
    timed = _timed(_targeted(back, settings), settings, start_ms)
    return _counted(timed, over, chosen.count(), start_ms)


def _chosen(spark: SparkSession, settings: RedriveSettings, place: str | None) -> DataFrame:
    """Return the selected messages, numbered in their order if needed."""
    reader = spark.read.format("dwell").option("url", settings.url).option("view", "messages")
    view = reader.option("topics", ",".join(settings.topics)).load()
    fitting = selected.fitting(view, settings.which())
    found = expressions.chosen(fitting, "where", settings.where)
    names = [*_KNOWN, *(_COPIED if settings.copy_to else ())]
    order = _order(found, settings)
    columns = [F.col(name) for name in names]
    narrow = found.select(*columns, *[key.alias(name) for name, (key, _) in order.items()])
    if place is not None:
        narrow = decision.kept(narrow, place, _CHOSEN)
    if settings.limit is None and settings.pace is None:
        return pace.keep(narrow.select(*columns))
    by = [F.col(name).desc() if falling else F.col(name) for name, (_, falling) in order.items()]
    return pace.numbered(narrow, _PLACE, by).select(*columns, _PLACE)


def _order(found: DataFrame, settings: RedriveSettings) -> dict[str, tuple[Column, bool]]:
    """Return the columns to sort by; topic and id break every tie, the same in every run."""
    order = {}
    for number, text in enumerate([*(settings.order_by or ["priority", "due"]), "topic", "id"]):
        plain, _, word = text.strip().rpartition(" ")
        has_word = word.lower() in ("asc", "desc") and bool(plain)
        key = expressions.column(found, "order-by", plain if has_word else text)
        order[f"_order_{number}"] = (key, has_word and word.lower() == "desc")
    return order


# --- when and where to ----------------------------------------------------------------------------


def _targeted(back: DataFrame, settings: RedriveSettings) -> DataFrame:
    """Return the messages with their target topics and ids."""
    if not settings.copy_to:
        return back.withColumns({"to": F.col("topic"), "to_id": F.col("id")})
    # Dropping duplicates here keeps an id from being put twice in one run.
    names = [F.lit(name) for name in dict.fromkeys(settings.copy_to)]
    return back.withColumns({"to": F.explode(F.array(*names)), "to_id": _copy_id()})


def _copy_id() -> Column:
    """Return an id derived from topic and id, so that a second run finds it there."""
    joined = F.concat(F.col("topic"), F.lit("/"), F.col("id"))
    return F.when(F.octet_length(joined) <= MAX_ID_BYTES, joined).otherwise(F.sha2(joined, 256))


def _timed(back: DataFrame, settings: RedriveSettings, start_ms: int) -> DataFrame:
    jitter_ms = pace.jitter_ms(F.concat_ws("/", "to", "to_id"), settings.spread)
    timed = back.withColumn(_NEW_DUE, F.lit(start_ms).cast("long") + jitter_ms)
    at = pace.pace(settings.pace)
    return timed if at is None else pace.paced(timed, _NEW_DUE, at, [F.col(_PLACE), F.col("to")])


# --- what is done ---------------------------------------------------------------------------------


def _bring_back(plan: _Plan, settings: RedriveSettings) -> Counter[str]:
    names: dict[str, Any] = {"topic": F.col("to"), "id": F.col("to_id"), "due": F.col(_NEW_DUE)}
    if settings.verb == "copy":
        return _copy(plan, settings, names)
    names["version"] = F.col("version")
    return sink.write(_renamed(plan.back, names), settings.url, settings.verb)


def _copy(plan: _Plan, settings: RedriveSettings, names: dict[str, Any]) -> Counter[str]:
    names |= {name: F.col(name) for name in _COPIED}
    # 0 stands for the topic's own setting, which a put gets by omitting it.
    names["max_attempts"] = F.nullif(F.col("max_attempts"), F.lit(0))
    counts = sink.write(_renamed(plan.back, names), settings.url, "put", onConflict="keep")
    counts["copied"] = counts.pop("created", 0)
    return counts


def _renamed(rows: DataFrame, names: dict[str, Column]) -> DataFrame:
    return rows.select(*[column.alias(name) for name, column in names.items()])


def _drop(plan: _Plan, settings: RedriveSettings) -> Counter[str]:
    """Cancel messages over the limit; dead messages can be cancelled too."""
    if not plan.over_count:
        return Counter()
    return sink.write(plan.over.select("topic", "id", "version"), settings.url, "cancel")


def _keep_history(plan: _Plan, settings: RedriveSettings) -> None:
    assert settings.history is not None
    back = _history(plan.back, settings.verb, F.timestamp_millis(_NEW_DUE), F.col("to"))
    over = _history(plan.over, "drop", F.lit(None).cast("timestamp"), F.lit(None).cast("string"))
    if plan.back_count + plan.over_count:
        back.unionByName(over).write.mode("append").parquet(settings.history)


def _history(rows: DataFrame, what: str, new_due: Column, to: Column) -> DataFrame:
    names = {
        "topic": F.col("topic"),
        "id": F.col("id"),
        "what": F.lit(what),
        "when": F.timestamp_millis(F.lit(pace.now_ms())),
        "old_due": F.col("due"),
        "new_due": new_due,
        "to": to,
        "last_error": F.col("last_error"),
        "attempt": F.col("attempt"),
    }
    return _renamed(rows, names)


# --- the line -------------------------------------------------------------------------------------


def _did(
    plan: _Plan,
    settings: RedriveSettings,
    done: Counter[str],
    dropped: Counter[str],
    start_ms: int,
) -> str:
    result = _RESULTS[settings.verb]
    span = _over(plan.last_ms - start_ms) if done[result] else ""
    others = sink.shown(Counter({name: done[name] for name in done if name != result}))
    line = f"redrive: {plan.chosen_count:,} chosen; {done[result]:,} {result}{span}"
    line += f", {others}" if others else ""
    if settings.skip:
        left = dropped.total() - dropped["cancelled"]
        line += f", {dropped['cancelled']:,} dropped"
        line += f" ({left:,} were taken or gone before that)" if left else ""
    return line + (f"; history {settings.history}" if settings.history else "")


def _would(plan: _Plan, settings: RedriveSettings, start_ms: int) -> str:
    span = _over(plan.last_ms - start_ms)
    line = f"redrive: {plan.chosen_count:,} chosen; would {settings.verb} {plan.back_count:,}{span}"
    if settings.skip:
        line += f", drop {plan.over_count:,}"
    return f"{line} (dry run: nothing was changed)"


def _over(span_ms: int) -> str:
    """Return the approximate duration; empty if it is immediate."""
    for name, unit_ms in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if span_ms >= 2 * unit_ms:
            return f" over {round(span_ms / unit_ms)} {name}"
    return ""


if __name__ == "__main__":
    sys.exit(main("redrive"))
