"""Spark reads an export where it lies, with the columns of the view ``messages``."""

import dwell
from dwell.spark.schemas import DUE

FAR_MS = 4_102_444_800_000


def test_an_export_is_a_table(spark, tmp_path):
    with dwell.open("memory:") as queue:
        queue.put_many("a", [b"1", b"2"], ids=["x", "y"], key="k", headers={"h": "v"}, due=FAR_MS)
        queue.put("b", b"3")
        queue.bury(queue.take("b"), "broken")
        queue.export(tmp_path / "export")
    table = spark.read.parquet(str(tmp_path / "export"))
    said = ", ".join(f"{name} {kind.upper()}" for name, kind in table.dtypes)
    assert said == DUE.replace(" NOT NULL", "").replace("MAP<STRING, STRING>", "MAP<STRING,STRING>")
    rows = {row.id: row for row in table.collect()}
    assert (bytes(rows["x"].body), rows["x"].key, rows["x"].headers) == (b"1", "k", {"h": "v"})
    assert rows["x"].due.timestamp() * 1000 == FAR_MS
    counts = {
        (row.topic, row.state): row["count"]
        for row in table.groupBy("topic", "state").count().collect()
    }
    assert counts == {("a", "delayed"): 2, ("b", "dead"): 1}
