"""The peer ``redis``: job pool, buckets, ready queue and un-ack set, as people build them on Redis.

Keys: ``q:delayed`` and ``q:unacked`` (sorted sets, score = due or end of lease in milliseconds),
``q:ready`` (list), ``q:bodies`` and ``q:tries`` (hashes by id), ``q:next`` (counter). It promises
what such queues promise: a put that is repeated changes nothing, what is due moves to the ready
queue, a take holds its messages in the un-ack set and counts the try, what is held too long goes
back, an ack of what is not held any more does nothing. One script a verb, a whole batch an argument
list: a batch costs one round trip, and each key is touched as rarely as the verb allows.
"""

from collections.abc import Sequence

PUT = """
-- KEYS: delayed, bodies. ARGV: due, then id and body of each message. Returns how many were new.
local scores = {}
for i = 2, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1]) == 1 then
    scores[#scores + 1] = ARGV[1]
    scores[#scores + 1] = ARGV[i]
  end
end
if #scores > 0 then redis.call('ZADD', KEYS[1], unpack(scores)) end
return #scores / 2
"""

PUT_NEW = """
-- KEYS: delayed, bodies, next. ARGV: due, then the body of each message. Returns the first id.
local n = #ARGV - 1
local last = redis.call('INCRBY', KEYS[3], n)
local scores, fields = {}, {}
for i = 1, n do
  local id = last - n + i
  scores[#scores + 1] = ARGV[1]
  scores[#scores + 1] = id
  fields[#fields + 1] = id
  fields[#fields + 1] = ARGV[i + 1]
end
redis.call('ZADD', KEYS[1], unpack(scores))
redis.call('HSET', KEYS[2], unpack(fields))
return last - n + 1
"""

PUT_DUE = """
-- KEYS: delayed, bodies. ARGV: due, id and body of each message.
local scores, fields = {}, {}
for i = 1, #ARGV, 3 do
  scores[#scores + 1] = ARGV[i]
  scores[#scores + 1] = ARGV[i + 1]
  fields[#fields + 1] = ARGV[i + 1]
  fields[#fields + 1] = ARGV[i + 2]
end
redis.call('ZADD', KEYS[1], unpack(scores))
redis.call('HSET', KEYS[2], unpack(fields))
"""

PUT_NEW_DUE = """
-- KEYS: delayed, bodies, next. ARGV: due and body of each message. Returns the first id.
local n = #ARGV / 2
local last = redis.call('INCRBY', KEYS[3], n)
local scores, fields = {}, {}
for i = 1, n do
  local id = last - n + i
  scores[#scores + 1] = ARGV[2 * i - 1]
  scores[#scores + 1] = id
  fields[#fields + 1] = id
  fields[#fields + 1] = ARGV[2 * i]
end
redis.call('ZADD', KEYS[1], unpack(scores))
redis.call('HSET', KEYS[2], unpack(fields))
return last - n + 1
"""

TAKE = """
-- KEYS: delayed, ready, unacked, bodies, tries. ARGV: now, limit, end of lease.
-- Moves back what was held too long, moves on what is due, takes. Returns ids, bodies, tries.
for _, key in ipairs({KEYS[3], KEYS[1]}) do
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
  if #due > 0 then
    redis.call('ZREMRANGEBYRANK', key, 0, #due - 1)
    redis.call('RPUSH', KEYS[2], unpack(due))
  end
end
local ids = redis.call('LPOP', KEYS[2], ARGV[2])
if not ids then return {} end
local leases, tries = {}, {}
for i = 1, #ids do
  leases[#leases + 1] = ARGV[3]
  leases[#leases + 1] = ids[i]
  tries[i] = redis.call('HINCRBY', KEYS[5], ids[i], 1)
end
redis.call('ZADD', KEYS[3], unpack(leases))
return {ids, redis.call('HMGET', KEYS[4], unpack(ids)), tries}
"""

ACK = """
-- KEYS: unacked, bodies, tries. ARGV: ids. Returns how many were held.
local held = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local done = {}
for i = 1, #ARGV do
  if held[i] then done[#done + 1] = ARGV[i] end
end
if #done == 0 then return 0 end
redis.call('HDEL', KEYS[2], unpack(done))
redis.call('HDEL', KEYS[3], unpack(done))
return redis.call('ZREM', KEYS[1], unpack(done))
"""

CANCEL = """
-- KEYS: delayed, unacked, bodies. ARGV: ids. Returns 1 cancelled, 2 leased, 0 unknown, for each.
local gone, answers = {}, {}
local dues = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
for i = 1, #ARGV do
  if dues[i] then
    gone[#gone + 1] = ARGV[i]
    answers[i] = 1
  else
    answers[i] = redis.call('ZSCORE', KEYS[2], ARGV[i]) and 2 or 0
  end
end
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
  redis.call('HDEL', KEYS[3], unpack(gone))
end
return answers
"""

RESCHEDULE = """
-- KEYS: delayed, unacked. ARGV: due, then ids. Returns 1 moved, 2 leased, 0 unknown, for each.
local moved, answers = {}, {}
local dues = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 2))
for i = 2, #ARGV do
  if dues[i - 1] then
    moved[#moved + 1] = ARGV[1]
    moved[#moved + 1] = ARGV[i]
    answers[i - 1] = 1
  else
    answers[i - 1] = redis.call('ZSCORE', KEYS[2], ARGV[i]) and 2 or 0
  end
end
if #moved > 0 then redis.call('ZADD', KEYS[1], 'XX', unpack(moved)) end
return answers
"""

KEYS = {
    "put": ("q:delayed", "q:bodies"),
    "put_new": ("q:delayed", "q:bodies", "q:next"),
    "put_due": ("q:delayed", "q:bodies"),
    "put_new_due": ("q:delayed", "q:bodies", "q:next"),
    "take": ("q:delayed", "q:ready", "q:unacked", "q:bodies", "q:tries"),
    "ack": ("q:unacked", "q:bodies", "q:tries"),
    "cancel": ("q:delayed", "q:unacked", "q:bodies"),
    "reschedule": ("q:delayed", "q:unacked"),
}
SCRIPTS = {
    "put": PUT,
    "put_new": PUT_NEW,
    "put_due": PUT_DUE,
    "put_new_due": PUT_NEW_DUE,
    "take": TAKE,
    "ack": ACK,
    "cancel": CANCEL,
    "reschedule": RESCHEDULE,
}


class RedisQueue:
    """The verbs as arguments of EVALSHA, for a client or a pipeline, sync or asyncio."""

    def __init__(self, hashes: dict[str, str]) -> None:
        self._hashes = hashes

    def call(self, client, verb: str, *arguments: object):  # type: ignore[no-untyped-def]
        """Run a verb's script."""
        keys = KEYS[verb]
        return client.evalsha(self._hashes[verb], len(keys), *keys, *arguments)


def load(client) -> RedisQueue:  # type: ignore[no-untyped-def]
    """Give the scripts to a server, by a sync client."""
    return RedisQueue({verb: client.script_load(text) for verb, text in SCRIPTS.items()})


def pairs(ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Return id, body, id, body ..."""
    mixed: list[bytes] = [b""] * (2 * len(ids))
    mixed[::2], mixed[1::2] = ids, bodies
    return mixed
