"""The flights job with Kafka at both ends: plan and news come by topics, reminders leave into one.

``python -m examples.flights_kafka``: Spark reads the three topics and schedules; two relays send
what falls due, and one of them is killed on the way; a third process sends the queue's events,
over which the audit balances the books.
"""
