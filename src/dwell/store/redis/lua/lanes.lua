-- Lanes: the keys of topics that are ordered or fair; what such a topic gives is made loose first.
-- Of an ordered topic, `lane` has the ready messages of a key by priority, due and arrival. A ready one
-- that is not to be taken yet is parked: its score in `ready` is PARKED and more, beyond all that a take
-- looks at. Of a key of which nothing is begun the first stands among what may be taken, always.
-- Of a fair topic, the score in `ready` is no priority but a turn (start-time fair queueing: Goyal, Vin,
-- Cheng 1996), which no priority reaches; `turns` has the last one of each key, `standing` how many of it
-- have yet to come. Where a topic is ordered too only what stands among what may be taken has a turn, and
-- of keys `turns` has those that were taken, and `standing` nothing.
-- What a topic has to form yet is UNFORMED.
local PARKED, UNFORMED, FIRST_TURN = 2^45, 2^46, 2^33
local UNPARKED = '(' .. PARKED

local function is_laned(topic)
  local of = settings(topic)
  return of.ordered or of.fair or of.forming
end

-- Tell whether whole blocks of a topic may stand or be parked, as lining.lua says.
local function may_be_lined(topic)
  local of = settings(topic)
  return of.ordered and not of.fair and not of.forming
end

-- Return the key of a message by its extra, which may be a part of a text; nil when it has none.
local function key_of(text, at, size)
  at, size = at or 0, size or #text
  if size == 0 then return nil end
  -- Nearly all keys are short texts, whose size stands in the byte before them.
  local length = text:byte(at + 2) - 160
  if length >= 0 and length < 32 then return text:sub(at + 3, at + length + 2) end
  return cmsgpack.unpack(text:sub(at + 1, at + size))[1]
end

local function lane_key(topic, key) return KEY.lane .. #topic .. ':' .. topic .. key end

-- Return the key of a message of an ordered topic; nil when it may be taken whatever others do.
local function ordered_key(r) return settings(r.topic).ordered and key_of(r.extra) or nil end

-- Note that another of a key may be the first now.
local function mark_key(topic, key)
  changed[topic] = changed[topic] or {}
  changed[topic][key] = true
end

-- Note the same of a message's key.
local function mark(r)
  local key = ordered_key(r)
  if key then mark_key(r.topic, key) end
end

-- Return the turn before which there are none any more.
local function turn_now(topic)
  if not turns[topic] then turns[topic] = tonumber(call('HGET', KEY.counts .. topic, 'turn') or FIRST_TURN) end
  return turns[topic]
end

-- Return what stands for the key of a message among `turns` and `standing`.
local function turns_field(key) return key and 'k' .. key or '' end

-- Tell whether each ready message of a key has a turn, or else only the first of them.
local function all_have_turns(topic, key)
  local of = settings(topic)
  return of.fair and not (key and of.ordered)
end

-- Return the turn that is a key's next one.
local function next_turn(topic, key)
  local name, lane = KEY.turns .. topic, turns_field(key)
  local turn = math.max(turn_now(topic), tonumber(call('ZSCORE', name, lane) or 0) + 1)
  if all_have_turns(topic, key) then
    call('ZADD', name, turn, lane)
    call('HINCRBY', KEY.standing .. topic, lane, 1)
  end
  return turn
end

-- Note that so many messages of a key have a turn no more; return how many of it still have.
local function leave_turns(topic, lane, number)
  local name = KEY.standing .. topic
  local left = call('HINCRBY', name, lane, -number)
  if left <= 0 then call('HDEL', name, lane) end
  return left
end

-- Note that a ready message leaves otherwise than by a take, with its score. The last turn of its key is
-- its next one again, and where all of it has left, so are those that were given back before.
local function give_back(r, score)
  local key = settings(r.topic).fair and key_of(r.extra) or nil
  if not all_have_turns(r.topic, key) or score < FIRST_TURN or score >= PARKED then return end
  local name, lane, current = KEY.turns .. r.topic, turns_field(key), turn_now(r.topic)
  local before = tonumber(call('ZSCORE', name, lane) or 0)
  local last = before == score and score - 1 or before
  if leave_turns(r.topic, lane, 1) <= 0 then last = math.min(last, current) end
  if last < current then call('ZREM', name, lane) elseif last < before then call('ZADD', name, last, lane) end
end

-- Return how many keys of a topic have something that may be taken.
local function keys_standing(topic)
  local name = KEY.standing .. topic
  local lanes = call('HLEN', name)
  if not settings(topic).ordered then return lanes end
  -- Of all that stands, what has no key is one of them.
  return call('ZCOUNT', KEY.ready .. topic, '-inf', UNPARKED) - tonumber(call('HGET', name, '') or 0) + lanes
end

-- Note that messages of a fair topic were taken, so many of each key; return how many.
local function use_turns(topic, taken)
  local number = 0
  for lane, count in pairs(taken) do
    number = number + count
    if lane == '' or not settings(topic).ordered then leave_turns(topic, lane, count) end
  end
  return number
end

-- Note that messages of a fair topic were taken by their ids, so many of each key. No turn has come, so
-- keys of which nothing is ready may be many: of those some are forgotten, the earliest first.
local function use_turns_by_ids(topic, taken)
  local name = KEY.turns .. topic
  use_turns(topic, taken)
  if settings(topic).ordered then
    local own, number = call('ZSCORE', name, ''), call('ZCARD', name) - 2 * keys_standing(topic) - LIMITS.looked
    if number > 0 then call('ZREMRANGEBYRANK', name, 0, number - 1) end
    if own then call('ZADD', name, own, '') end
  else
    for lane in pairs(taken) do
      if call('HEXISTS', KEY.standing .. topic, lane) == 0 then call('ZREM', name, lane) end
    end
  end
end

-- Note that so many messages of a fair topic were taken, with turns up to one. Turns go on: once more were
-- taken than there were keys when the last one began, the next one begins. Keys are forgotten whose turns
-- are over.
local function move_turns(topic, turn, number)
  local name, ready = KEY.turns .. topic, KEY.ready .. topic
  local of = call('HMGET', KEY.counts .. topic, 'turn', 'turn_left')
  local current, left = tonumber(of[1] or FIRST_TURN), tonumber(of[2] or nil)
  local standing = keys_standing(topic)
  left = left and left - number or standing
  if turn > current then
    current, left = turn, standing
  elseif left < 0 then
    current, left = current + 1, standing
  end
  if call('EXISTS', ready) == 0 then
    current = math.max(current, tonumber(call('ZRANGE', name, -1, -1, 'WITHSCORES')[2] or 0) + 1)
    call('UNLINK', name, KEY.standing .. topic)
  else
    call('ZREMRANGEBYSCORE', name, '-inf', string.format('(%.0f', current))
  end
  call('HSET', KEY.counts .. topic, 'turn', string.format('%.0f', current), 'turn_left', left)
  turns[topic] = current
end

-- Return the line of a key without what is parked, which is in the lane from now on.
local function cut_line(topic, key)
  local front, scores = fronts[topic][key], {}
  if #front == 19 then return front end
  local priority = unpack_from('>I4', front, 3)
  for at = 20, #front, 13 do
    scores[#scores + 1] = priority
    scores[#scores + 1] = front:sub(at, at + 12)
  end
  many('ZADD', lane_key(topic, key), scores)
  write_fronts(topic, key, 'q+' .. front:sub(3, 19))
  return fronts[topic][key]
end

-- Tell whether a ready message that is loose comes after what leads the line of its key, which knows of it then.
local function is_behind_line(r, key, entry)
  if not may_be_lined(r.topic) then return false end
  learn_fronts(r.topic, {key})
  local front, name = fronts[r.topic][key], entry:sub(7)
  if line.is(front) then front = cut_line(r.topic, key) end
  if front == '' or (line.is(front) and name == line.first(front):sub(7)) then
    -- Nothing is in front, or this one itself, which lies in its block no more.
    write_fronts(r.topic, key, r.attempt > 0 and name or LOOSE_FRONT)
    return false
  end
  if not line.is(front) then return false end
  local priority = unpack_from('>I4', front, 3)
  if r.priority < priority or (r.priority == priority and is_earlier(entry, line.first(front))) then return false end
  note_others(r.topic, key)
  return true
end

-- Let a ready message stand in its lane; return its score among the ready. Where only the first of a
-- key has a turn the end of the call sees to that, and has to know which was the first before.
local function line_up(r, entry)
  local of, topic = settings(r.topic), r.topic
  local key = (of.ordered or of.fair) and key_of(r.extra) or nil
  if not (key and of.ordered) then return of.fair and next_turn(topic, key) or r.priority end
  local name = lane_key(topic, key)
  if of.fair then
    firsts[topic] = firsts[topic] or {}
    if firsts[topic][key] == nil then firsts[topic][key] = call('ZRANGE', name, 0, 0)[1] or false end
    mark(r)
  end
  call('ZADD', name, r.priority, entry)
  return (of.fair or is_behind_line(r, key, entry)) and PARKED + r.priority or r.priority
end

-- Let a message that becomes ready stand in its lane; return its score among the ready.
local function enter_ready(r, entry)
  return settings(r.topic).forming and UNFORMED or line_up(r, entry)
end

local function stand_ready(r, entry) call('ZADD', KEY.ready .. r.topic, enter_ready(r, entry), entry) end

-- Let a message that is ready no more leave its lane.
local function leave_ready(r, entry)
  local of = settings(r.topic)
  local key = (of.ordered or of.forming) and key_of(r.extra)
  if key then call('ZREM', lane_key(r.topic, key), entry) end
end

-- Let a message that waits in a block leave its lane, or its line, and note when that changes which is first.
local function leave_place(r, entry)
  leave_ready(r, entry)
  local key = ordered_key(r)
  if not key then return end
  learn_fronts(r.topic, {key})
  local front = fronts[r.topic][key]
  if not line.is(front) or line.first(front) == entry then mark_key(r.topic, key) end
  for at = 20, line.is(front) and #front or 0, 13 do
    if front:sub(at, at + 12) == entry then write_fronts(r.topic, key, front:sub(1, at - 1) .. front:sub(at + 13)) end
  end
end

-- Return how many of so many ready messages of a topic may be taken, or a few more where blocks stand
-- among them.
local function standing(topic, number)
  local of = settings(topic)
  if not (of.ordered or of.forming) then return number end
  return math.min(number, 64 * call('ZCOUNT', KEY.ready .. topic, '-inf', UNPARKED))
end
