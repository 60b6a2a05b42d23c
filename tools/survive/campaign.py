"""A campaign written by Spark: ``python -m tools.survive.campaign URL COUNT FIRST_DUE_MS``.

It is the driver that is killed in the middle, and run again with the same ids.
"""

import sys

from dwell.spark.session import session
from tools.survive.actor import TOPICS

#: Several tasks a core, so that there is a middle to be killed in.
_TASKS = 12


def main() -> None:
    """Write so many messages, each with an id, and due within two seconds of the first due."""
    url, count, first_due_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spark = session("survive", "local[2]", {"spark.ui.showConsoleProgress": "false"})
    frame = spark.range(0, count, 1, _TASKS).selectExpr(
        "concat('row', id) AS id",
        "repeat(concat('row', id), 12) AS body",
        f"timestamp_millis({first_due_ms} + id % 2000) AS due",
    )
    frame.write.format("dwell").mode("append").options(url=url, topic=TOPICS[0]).save()
    spark.stop()


if __name__ == "__main__":
    main()
