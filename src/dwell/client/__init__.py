"""The client: the queue of a server, behind the same API as every other store."""
