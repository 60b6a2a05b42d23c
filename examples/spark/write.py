"""Write rows into a queue, then cancel and move some of them, all from DataFrames.

Needs `dwell serve`, and its address in DWELL_STORE. The first time it prints::

    put: {'created': 1000}
    put again: {'kept': 1000}
    cancel: {'cancelled': 100}
    reschedule: {'moved': 10, 'unknown': 10}
"""

# %% A session that knows the format `dwell`
import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame

from dwell.spark import register, session

url = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
spark = session("write")
register(spark)
counts = Path(tempfile.mkdtemp()) / "counts.json"


def write(rows: DataFrame, **options: str) -> dict[str, int]:
    """Do something with each row, and return how many had which result."""
    writer = rows.write.format("dwell").mode("append").options(url=url, topic="write", **options)
    writer.option("counts", str(counts)).save()
    found: dict[str, int] = json.loads(counts.read_bytes())
    return found


# %% A campaign: `id`, `due` and `priority` are known names, the rest becomes a body of JSON
campaign = spark.range(1000).selectExpr(
    "concat('user-', id) AS id",
    "timestamp'2100-01-01 09:00:00' + make_interval(0, 0, 0, 0, 0, id) AS due",
    "if(id % 10 = 0, 100, 1024) AS priority",
    "concat('user', id, '@example.org') AS email",
    "id % 3 = 0 AS paid",
)
print("put:", write(campaign))

# %% Ids make a write that is done again harmless
print("put again:", write(campaign))

# %% Other verbs want the id, and no more than they need
print("cancel:", write(campaign.where("priority = 100").select("id"), op="cancel"))
moved = spark.range(1, 21).selectExpr("concat('user-', id * 5) AS id", "'1h' AS delay")
print("reschedule:", write(moved, op="reschedule"))
