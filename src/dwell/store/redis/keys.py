"""Keys: the names of a shard's keys in Redis, for Python and Lua alike."""

from functools import lru_cache


class Keys:
    """The names of one shard's keys, which all begin with ``base``.

    A name that ends with a colon is a prefix: a topic, an owner, a place or an instance follows.
    ``docs/reference/redis.md`` lists the content of each.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.store = f"{base}:store"
        self.secret = f"{base}:secret"
        self.meta = f"{base}:meta"
        self.topics = f"{base}:topics"
        self.versions = f"{base}:versions"
        self.unsettled = f"{base}:unsettled"
        self.known = f"{base}:known"
        # Messages: loose, or packed in blocks.
        self.messages = f"{base}:messages"
        self.block = f"{base}:block:"
        self.dirs = f"{base}:dirs"
        self.dir = f"{base}:dir:"
        # Sets by state and time.
        self.timers = f"{base}:timers"
        self.delayed = f"{base}:delayed:"
        self.ready = f"{base}:ready:"
        self.leased = f"{base}:leased"
        self.dead = f"{base}:dead:"
        self.expiring = f"{base}:expiring:"
        self.counts = f"{base}:counts:"
        # Keys of topics that are ordered or fair.
        self.lane = f"{base}:lane:"
        self.fronts = f"{base}:fronts:"
        self.turns = f"{base}:turns:"
        self.standing = f"{base}:standing:"
        # Ids and owners.
        self.ids = f"{base}:ids:"
        self.earlier = f"{base}:earlier:"
        self.forgets = f"{base}:forgets"
        self.results = f"{base}:results:"
        self.watched = f"{base}:watched"
        self.owners = f"{base}:owners"
        self.owner = f"{base}:owner:"
        # Events and their counts.
        self.totals = f"{base}:totals"
        self.events = f"{base}:events"
        self.log = f"{base}:log"
        self.gathered = f"{base}:gathered"
        # Calls in progress, and channels for wakes.
        self.calls = f"{base}:calls:"
        self.new = f"{base}:new:"
        self.wake = f"{base}:wake"


@lru_cache(1024)
def keys_of(prefix: str, shard: int) -> Keys:
    """Return the keys of a shard; the braces put them into one slot of a cluster."""
    return Keys(f"{prefix}:{{{shard}}}")


def of_functions() -> dict[str, object]:
    """Return the suffixes of the keys for the functions."""
    return vars(Keys(""))
