-- Lanes: the keys of topics that are ordered or fair; what such a topic gives is made loose first.
-- Of an ordered topic, `lane` has the ready messages of a key by priority, due and arrival, and `fronts`
-- the number of the one that was taken and is not done. A ready one that is not to be taken yet is
-- parked: its score in `ready` is PARKED and more, beyond all that a take looks at.
-- Of a fair topic, the score in `ready` is no priority but a turn (start-time fair queueing: Goyal, Vin,
-- Cheng 1996), which no priority reaches; `turns` has the last one of each key.
local PARKED, FIRST_TURN = 2^45, 2^33
local UNPARKED = '(' .. PARKED

local function is_laned(topic)
  local of = settings(topic)
  return of.ordered or of.fair
end

-- Return the key of a message by its extra; nil when it has none.
local function key_of(extra)
  if extra == '' then return nil end
  return cmsgpack.unpack(extra)[1]
end

local function lane_key(topic, key) return KEY.lane .. #topic .. ':' .. topic .. key end

-- Return the key of a message of an ordered topic; nil when it may be taken whatever others do.
local function ordered_key(r) return settings(r.topic).ordered and key_of(r.extra) or nil end

-- Note that another of a message's key may be the first now.
local function mark(r)
  local key = ordered_key(r)
  if not key then return end
  changed[r.topic] = changed[r.topic] or {}
  changed[r.topic][key] = true
end

local function next_turn(topic, key)
  local name, lane = KEY.turns .. topic, key and 'k' .. key or ''
  local current = tonumber(call('HGET', KEY.counts .. topic, 'turn') or FIRST_TURN)
  local last = tonumber(call('ZSCORE', name, lane) or current - 1)
  local turn = math.max(current, last + 1)
  call('ZADD', name, turn, lane)
  return turn
end

-- Note that all turns of a fair topic have come up to one that was taken.
local function take_turn(topic, turn)
  call('HSET', KEY.counts .. topic, 'turn', string.format('%.0f', turn))
  call('ZREMRANGEBYSCORE', KEY.turns .. topic, '-inf', string.format('(%.0f', turn))
end

-- Let a message that becomes ready stand in its lane; return its score among the ready.
local function enter_ready(r, entry)
  if not is_laned(r.topic) then return r.priority end
  local key = ordered_key(r)
  if key then call('ZADD', lane_key(r.topic, key), r.priority, entry) end
  return settings(r.topic).fair and next_turn(r.topic, key_of(r.extra)) or r.priority
end

local function stand_ready(r, entry) call('ZADD', KEY.ready .. r.topic, enter_ready(r, entry), entry) end

-- Let a message that is ready no more leave its lane.
local function leave_ready(r, entry)
  local key = ordered_key(r)
  if key then call('ZREM', lane_key(r.topic, key), entry) end
end

local function is_parked(topic, entry)
  return tonumber(call('ZSCORE', KEY.ready .. topic, entry) or 0) >= PARKED
end

-- Return how many ready messages of a topic are parked.
local function parked(topic)
  return settings(topic).ordered and call('ZCOUNT', KEY.ready .. topic, PARKED, '+inf') or 0
end
