-- Turns: in a fair topic, the score in `ready` is no priority but a turn (start-time fair queueing: Goyal, Vin, Cheng
-- 1996); `turns` has the last turn of each key, `standing` how many of its turns are still to come. If a topic is
-- ordered too, only available messages have a turn; then `turns` has the keys of taken messages, and `standing` is
-- empty.
local turns_field, next_turn, give_back, use_turns, use_turns_by_ids, move_turns
do
-- Return the current turn: none is before it.
local function turn_now(topic)
  if not turns[topic] then turns[topic] = tonumber(call('HGET', KEY.counts .. topic, 'turn') or FIRST_TURN) end
  return turns[topic]
end

-- Return the field for the key of a message in `turns` and `standing`.
function turns_field(key) return key and 'k' .. key or '' end

-- Tell whether each ready message of a key has a turn, or only the first of them.
local function all_have_turns(topic, key)
  local of = settings(topic)
  return of.fair and not (key and of.ordered)
end

-- Return the next turn of a key.
function next_turn(topic, key)
  local name, lane = KEY.turns .. topic, turns_field(key)
  local turn = math.max(turn_now(topic), tonumber(call('ZSCORE', name, lane) or 0) + 1)
  if all_have_turns(topic, key) then
    call('ZADD', name, turn, lane)
    call('HINCRBY', KEY.standing .. topic, lane, 1)
  end
  return turn
end

-- Note that `number` messages of a key have lost their turns; return how many of it still have one.
local function leave_turns(topic, lane, number)
  local name = KEY.standing .. topic
  local left = call('HINCRBY', name, lane, -number)
  if left <= 0 then call('HDEL', name, lane) end
  return left
end

-- Note that a ready message leaves without a take, with its score. The last turn of its key becomes its next turn
-- again, and once all messages of the key have left, turns given back earlier are free again, too.
function give_back(r, score)
  local key = settings(r.topic).fair and key_of(r.extra) or nil
  if not all_have_turns(r.topic, key) or score < FIRST_TURN or score >= PARKED then return end
  local name, lane, current = KEY.turns .. r.topic, turns_field(key), turn_now(r.topic)
  local before = tonumber(call('ZSCORE', name, lane) or 0)
  local last = before == score and score - 1 or before
  if leave_turns(r.topic, lane, 1) <= 0 then last = math.min(last, current) end
  if last < current then call('ZREM', name, lane) elseif last < before then call('ZADD', name, last, lane) end
end

-- Return how many keys of a topic have messages that may be taken.
local function keys_standing(topic)
  local name = KEY.standing .. topic
  local lanes = call('HLEN', name)
  if not settings(topic).ordered then return lanes end
  -- Messages without a key count as one key.
  return call('ZCOUNT', KEY.ready .. topic, '-inf', UNPARKED) - tonumber(call('HGET', name, '') or 0) + lanes
end

-- Note that messages of a fair topic were taken, with the number for each key; return how many.
function use_turns(topic, taken)
  local number = 0
  for lane, count in pairs(taken) do
    number = number + count
    if lane == '' or not settings(topic).ordered then leave_turns(topic, lane, count) end
  end
  return number
end

-- Note that messages of a fair topic were taken by id, with the number for each key. No turn has come, so there may be
-- many keys without ready messages: some of those are dropped, the earliest first.
function use_turns_by_ids(topic, taken)
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

-- Note that `number` messages of a fair topic were taken, with turns up to `turn`. Turns advance: once more messages
-- were taken than there were keys when the last turn began, the next turn begins. Keys whose turns are over are
-- dropped.
function move_turns(topic, turn, number)
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
end
