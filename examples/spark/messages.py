"""Ask the pending set with SQL.

Needs `dwell serve`, and its address in DWELL_STORE. Prints::

    +-------+-----+------------+-------------------+
    |state  |count|with a phone|first              |
    +-------+-----+------------+-------------------+
    |delayed|500  |100         |2100-01-01 00:00:00|
    +-------+-----+------------+-------------------+
    <BLANKLINE>
    {"user":7,"phone":null}
"""

# %% A session that knows the format `dwell`
import os

from dwell.spark import register, session

url = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
spark = session("messages")
register(spark)

# %% Something to look at
rows = spark.range(500).selectExpr(
    "concat('user-', id) AS id",
    "timestamp'2100-01-01' + make_interval(0, 0, 0, id % 30) AS due",
    "id AS user",
    "if(id % 5 = 0, concat('+1', id), null) AS phone",
)
rows.write.format("dwell").mode("append").options(url=url, topic="messages").save()

# %% A table that is read anew by each query
spark.read.format("dwell").option("url", url).load().createOrReplaceTempView("pending")
spark.sql(
    """
    SELECT state, count(*) AS count,
           count(get_json_object(string(body), '$.phone')) AS `with a phone`, min(due) AS first
    FROM pending
    WHERE topic = 'messages' AND due < '2200-01-01'
    GROUP BY state
    """
).show(truncate=False)

# %% One message; the topic is chosen by the server, the id by Spark
one = spark.sql("SELECT string(body) FROM pending WHERE topic = 'messages' AND id = 'user-7'")
for row in one.collect():
    print(row[0])
