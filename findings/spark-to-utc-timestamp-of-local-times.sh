#!/usr/bin/env bash
# Spark's to_utc_timestamp depends on the session's zone where its argument is a TIMESTAMP_NTZ.
#
# Versions: pyspark 4.3.0 and pyarrow 26.0.1, Java 17.
# Behaviour: to_utc_timestamp(at, 'America/New_York') is often used to turn local times with a zone
#   into moments. For a TIMESTAMP column its result does not depend on spark.sql.session.timeZone.
#   A Parquet file whose timestamps are not adjusted to UTC, as PyArrow writes naive
#   times, is read as TIMESTAMP_NTZ. The function then casts the local time in the session's
#   zone first, without a warning, and the same file gives another moment under each session zone.
#   A cast of the text with the zone at its end does not: cast(concat(at, ' ', zone) AS TIMESTAMP).
#   The moment meant here is 2001-01-01 09:00 in New York, which is 14:00 in UTC.
# Output seen:
#   the type that Spark reads: timestamp_ntz
#   session in UTC: to_utc_timestamp 2001-01-01T14:00:00Z, cast with the zone 2001-01-01T14:00:00Z
#   session in Asia/Kathmandu: to_utc_timestamp 2001-01-01T08:15:00Z, cast with the zone 2001-01-01T14:00:00Z
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1
cat > zones.py <<'END'
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

pq.write_table(pa.table({"at": [datetime(2001, 1, 1, 9)], "zone": ["America/New_York"]}), "at.parquet")
spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
rows = spark.read.parquet("at.parquet")
print("the type that Spark reads:", rows.schema["at"].dataType.simpleString())
for session in ("UTC", "Asia/Kathmandu"):
    spark.conf.set("spark.sql.session.timeZone", session)
    found = rows.selectExpr(
        "unix_millis(to_utc_timestamp(at, zone)) AS by_function",
        "unix_millis(cast(concat(at, ' ', zone) AS TIMESTAMP)) AS by_cast",
    ).head()
    function, cast = (
        f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" for ms in (found.by_function, found.by_cast)
    )
    print(f"session in {session}: to_utc_timestamp {function}, cast with the zone {cast}")
END
venv/bin/python -W ignore zones.py 2>/dev/null | tee seen
diff - seen <<'END'
the type that Spark reads: timestamp_ntz
session in UTC: to_utc_timestamp 2001-01-01T14:00:00Z, cast with the zone 2001-01-01T14:00:00Z
session in Asia/Kathmandu: to_utc_timestamp 2001-01-01T08:15:00Z, cast with the zone 2001-01-01T14:00:00Z
END
