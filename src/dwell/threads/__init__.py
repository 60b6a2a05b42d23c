"""The queue for threads: an event loop in a thread, a blocking API, and a thread pool."""
