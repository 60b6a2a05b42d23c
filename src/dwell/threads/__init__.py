"""The queue from threads: a loop beside them, a face that is not asynchronous, a pool."""
