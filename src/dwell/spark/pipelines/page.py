"""Self-contained pages: one look for the reports of all pipelines."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from pyspark.sql import SparkSession

_BASE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dwell: {% block title %}{% endblock %}</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; color: #1d232b; max-width: 60rem; margin: 2rem auto;
        padding: 0 1rem; }
 h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
 table { border-collapse: collapse; width: 100% }
 td, th { padding: .3rem .6rem; border-bottom: 1px solid #dfe3e8; text-align: left }
 td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
 td { overflow-wrap: anywhere }
 .verdict { padding: .6rem 1rem; border-left: 4px solid #2e8b57; background: #eef7f1 }
 .verdict.bad { border-color: #b8402a; background: #fbeeea }
 img { width: 100%; height: auto }
</style></head><body>
{% block body %}{% endblock %}
</body></html>
"""


def number(value: int) -> str:
    """Return a number in a form for people."""
    return f"{value:,}"


def moment(ms: int) -> str:
    """Return a point in time in a form for people, in UTC."""
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return when.strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03}" if ms % 1000 else "")


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a page; ``template`` extends ``base``, which has the blocks ``title`` and ``body``."""
    loader = DictLoader({"base": _BASE, "page": template})
    environment = Environment(autoescape=True, loader=loader, undefined=StrictUndefined)
    environment.filters.update(number=number, moment=moment)
    return environment.get_template("page").render(values)


def inside(folder: str, name: str) -> str:
    """Return the path of a name in a folder, which is a path or an address."""
    return f"{folder.rstrip('/')}/{name}"


def save(spark: SparkSession, path: str, text: str) -> None:
    """Write a text to any file system that Spark knows."""
    context: Any = spark.sparkContext
    target = context._jvm.org.apache.hadoop.fs.Path(path)
    files = target.getFileSystem(context._jsc.hadoopConfiguration())
    # A page for a browser needs no file of checksums next to it.
    files.setWriteChecksum(False)
    try:
        out = files.create(target, True)
        out.write(bytearray(text.encode()))
        out.close()
    finally:
        files.setWriteChecksum(True)
