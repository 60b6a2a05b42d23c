"""The departures job: three million rows of another table, with zones, nulls and duplicates.

Spark puts a reminder for each departure, at a local time of its airport, while the server is
killed; it puts them all again, drains them as a stream, and audits the books. What each row was to
become is computed without Spark.
"""
