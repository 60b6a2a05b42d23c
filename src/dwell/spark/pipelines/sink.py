"""Writing rows into a queue, with the counts of results."""

import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame


def write(rows: DataFrame, url: str, op: str, **options: str | None) -> Counter[str]:
    """Run a verb on the messages of rows; return how many had which result."""
    given = {name: value for name, value in options.items() if value is not None}
    with tempfile.TemporaryDirectory(prefix="dwell-") as folder:
        counts = Path(folder) / "counts.json"
        writer = rows.write.format("dwell").mode("append").options(**given)
        writer.option("url", url).option("op", op).option("counts", str(counts)).save()
        return Counter(msgspec.json.decode(counts.read_bytes(), type=dict[str, int]))


def shown(counts: Counter[str], *always: str) -> str:
    """Return counts in a form for people: the fixed counts, and others above 0."""
    names = [*always, *(name for name in counts if name not in always and counts[name])]
    return ", ".join(f"{counts[name]:,} {name}" for name in names)
