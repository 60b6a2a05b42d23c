"""The store on Redis: any number of instances over one engine, or over the nodes of a cluster."""

from dwell.store.redis.store import RedisStore

__all__ = ["RedisStore"]
