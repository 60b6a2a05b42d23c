"""Keys: what a shard keeps in Redis, and under which names; for Python and Lua alike."""

from functools import lru_cache


class Keys:
    """The names of one shard's keys, which all begin with ``base``.

    What ends with a colon goes on with what it is of: a topic, an owner, a place, an instance.
    ``docs/reference/redis.md`` says what each of them holds.
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
        # Messages: loose ones, and those that are packed in blocks.
        self.messages = f"{base}:messages"
        self.block = f"{base}:block:"
        self.dirs = f"{base}:dirs"
        self.dir = f"{base}:dir:"
        # What they wait for.
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
        # Who they are, and who has them.
        self.ids = f"{base}:ids:"
        self.earlier = f"{base}:earlier:"
        self.forgets = f"{base}:forgets"
        self.owners = f"{base}:owners"
        self.owner = f"{base}:owner:"
        # What happened.
        self.totals = f"{base}:totals"
        self.events = f"{base}:events"
        self.log = f"{base}:log"
        self.gathered = f"{base}:gathered"
        # Calls under way, and whom they wake.
        self.calls = f"{base}:calls:"
        self.new = f"{base}:new:"
        self.wake = f"{base}:wake"


@lru_cache(1024)
def keys_of(prefix: str, shard: int) -> Keys:
    """Return the keys of a shard; by the braces they lie in one slot of a cluster."""
    return Keys(f"{prefix}:{{{shard}}}")


def of_functions() -> dict[str, object]:
    """Return what the functions know of keys: what comes behind the base."""
    return vars(Keys(""))
