"""Writing rows into a queue, and what became of them."""

import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame


def write(rows: DataFrame, url: str, op: str, **options: str | None) -> Counter[str]:
    """Do a verb to the messages that rows name; return how many had which result."""
    given = {name: value for name, value in options.items() if value is not None}
    with tempfile.TemporaryDirectory(prefix="dwell-") as folder:
        counts = Path(folder) / "counts.json"
        writer = rows.write.format("dwell").mode("append").options(**given)
        writer.option("url", url).option("op", op).option("counts", str(counts)).save()
        return Counter(msgspec.json.decode(counts.read_bytes(), type=dict[str, int]))


def shown(counts: Counter[str], *always: str) -> str:
    """Return counts as a person reads them: those that are always told, and the others above 0."""
    names = [*always, *(name for name in counts if name not in always and counts[name])]
    return ", ".join(f"{counts[name]:,} {name}" for name in names)
