"""The command of a pipeline: runs it from a command line and prints its result line.

``dwell pipeline NAME`` and a pipeline's file under ``spark-submit`` both end here.
"""

import importlib
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import dwell.spark
from dwell import errors
from dwell.errors import DwellError, InvalidInput, StoreError
from dwell.spark import badrows, events
from dwell.spark.pipelines import progress
from dwell.spark.pipelines.options import Wanted, parse
from dwell.spark.session import session

# The form of a queue's error at the end of a traceback from another process.
_OWN_ERROR = re.compile(
    r"^(?:[\w.]+: )?dwell\.(?:errors|spark\.events|spark\.badrows)\.(\w+): (.+)$", re.MULTILINE
)

# Spark's loggers that print an error which is raised as well, with its whole stack: in Python, and
# in Java, which log at the level WARN.
_REPEATERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SPARK = "org.apache.spark"
_JAVA_REPEATERS = (
    f"{_SPARK}.executor.Executor",
    f"{_SPARK}.scheduler.TaskSetManager",
    f"{_SPARK}.sql.execution.datasources.v2.AppendDataExec",
    f"{_SPARK}.sql.execution.datasources.v2.DataWritingSparkTask",
    f"{_SPARK}.sql.execution.streaming.runtime.MicroBatchExecution",
    f"{_SPARK}.util.Utils",
)

#: Whether filters are pushed down to the server. Spark 4.3 mixes them up when a table is used
#: twice.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_DONE, _OTHER, _INPUT, _STORE, _INTERRUPTED = 0, 1, 2, 3, 130


class PipelineFailed(DwellError):
    """A pipeline finished with a bad result; its text is the line to print."""


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a pipeline and return the exit code; its last line goes to standard output.

    1 means that the pipeline found faults (the line goes to standard error), 2 that the input was
    refused, 3 that the store or the server could not do its work.
    """
    try:
        line = _run(name, sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:
        # The help was requested, and printed.
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (DwellError, PySparkException, Py4JError) as error:
        return _say(error)
    print(line, flush=True)
    return _DONE


def _run(name: str, argv: Sequence[str]) -> str:
    module = importlib.import_module(f"dwell.spark.pipelines.{name}")
    about = (module.__doc__ or "").strip()
    wanted = parse(name, about, getattr(module, f"{name.capitalize()}Settings"), argv)
    _let_sigterm_interrupt()
    is_ours = SparkSession.getActiveSession() is None
    spark = _session(name, wanted)
    try:
        return _work(name, module, spark, wanted)
    finally:
        if is_ours:
            spark.stop()


def _work(name: str, module: ModuleType, spark: SparkSession, wanted: Wanted) -> str:
    dwell.spark.register(spark)
    with _filtered_by_the_server(spark), progress.shown(spark, name):
        return str(module.run(spark, wanted.settings))


@contextmanager
def _filtered_by_the_server(spark: SparkSession) -> Iterator[None]:
    """Make Spark push filters down in the block: no pipeline uses a table for different queries."""
    before = spark.conf.get(_PUSHDOWN)
    spark.conf.set(_PUSHDOWN, "true")
    try:
        yield
    finally:
        spark.conf.set(_PUSHDOWN, before or "false")


def _session(name: str, wanted: Wanted) -> SparkSession:
    # Both are needed: the first for the start, the second for an existing session.
    quiet = {"spark.log.level": wanted.log_level, "spark.ui.showConsoleProgress": "false"}
    spark = session(f"dwell {name}", wanted.master, {**quiet, **wanted.conf})
    spark.sparkContext.setLogLevel(wanted.log_level)
    for name in _REPEATERS:
        PySparkLogger.getLogger(name).disabled = True
    if wanted.log_level == "ERROR":
        java: Any = spark._jvm
        log4j = java.org.apache.logging.log4j
        for name in _JAVA_REPEATERS:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    return spark


def _let_sigterm_interrupt() -> None:
    """Make SIGTERM end the process as orderly as Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


# --- errors ---------------------------------------------------------------------------------------


def _say(error: Exception) -> int:
    """Print one line for an error, and return its exit code."""
    if isinstance(error, PipelineFailed):
        print(error, file=sys.stderr)
        return _OTHER
    known = known_error(error)
    if known is not None:
        print(f"{type(known).__name__}: {known}", file=sys.stderr)
        return _code_of(known)
    print(f"{type(error).__name__}: {_first_line(error)}", file=sys.stderr)
    return _INPUT if isinstance(error, AnalysisException) else _OTHER


def _code_of(error: DwellError) -> int:
    if isinstance(error, InvalidInput):
        return _INPUT
    return _STORE if isinstance(error, StoreError) else _OTHER


def known_error(error: Exception) -> DwellError | None:
    """Return the queue's error in an error, or in its text."""
    return error if isinstance(error, DwellError) else _own_error(str(error))


def _own_error(text: str) -> DwellError | None:
    """Return the queue's error in Spark's text about a worker's failure."""
    found = _OWN_ERROR.findall(text)
    if not found:
        return None
    name, message = found[-1]
    modules = (errors, events, badrows)
    cls: Any = next((getattr(one, name) for one in modules if hasattr(one, name)), DwellError)
    return cls(message) if issubclass(cls, DwellError) else None


def _first_line(error: Exception) -> str:
    """Return the first line with content; a plan or a stack follows it."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
