-- Forming: rearranges the messages of a topic whose settings for order or fairness have changed, in small steps; `form`
-- among the topic's counts has the progress. First the ready messages are set apart, in order of due and arrival;
-- fronts are noted; then all are lined up in that order. Until then no message of the topic is taken, and newly ready
-- messages are set apart, too.

local begin_forming, is_formed
do
-- Start forming a topic, unless it has no messages; tell which.
function begin_forming(topic, was)
  local name = KEY.counts .. topic
  call('UNLINK', KEY.fronts .. topic, KEY.turns .. topic, KEY.standing .. topic)
  call('HDEL', name, 'turn', 'turn_left', 'form')
  turns[topic], fronts[topic], new_fronts[topic] = nil, nil, nil
  local leased = tonumber(call('HGET', name, 'leased') or 0) + (counts[topic] and counts[topic].leased or 0)
  if leased == 0 and call('EXISTS', KEY.ready .. topic, KEY.delayed .. topic) == 0 then return false end
  call('HSET', name, 'form', (was.ordered or was.forming) and 'lanes' or 'ready')
  return true
end

-- Set some ready messages apart, with their lanes if there are any; tell whether those were all.
local function set_apart(topic, has_lanes)
  local name, of, left = KEY.ready .. topic, settings(topic), LIMITS.looked * BYTES_AS_ONE
  local found = call('ZRANGEBYSCORE', name, '-inf', '(' .. UNFORMED, 'LIMIT', 0, math.ceil(LIMITS.looked / 4))
  local apart = {}
  for i = 1, #found do
    local n = unpack_from('>I7', found[i], 7)
    local b = #found[i] == 14 and (has_lanes or of.ordered or of.fair) and head_at(n)
    if b then
      local text = call('GET', block_key(n))
      left = left - #text
      local _, keys = keys_in(text, b)
      for at = 1, has_lanes and #keys or 0 do call('UNLINK', lane_key(topic, keys[at])) end
      explode(n, text, b)
    else
      local text = has_lanes and #found[i] == 13 and call('HGET', KEY.messages, member(n))
      left = left - (text and #text or 0)
      local key = text and key_of(outline(text).extra)
      if key then call('UNLINK', lane_key(topic, key)) end
      apart[#apart + 1] = UNFORMED
      apart[#apart + 1] = found[i]
    end
    if left <= 0 then break end
  end
  many('ZADD', name, apart)
  return #found == 0
end

-- Note the fronts among some of the leased or delayed messages; return where to continue, '0' at the end.
local function note_fronts(topic, part, cursor)
  local name = part == 'leased' and KEY.leased or KEY.delayed .. topic
  local some = call('ZSCAN', name, cursor, 'COUNT', LIMITS.looked)
  for i = 1, settings(topic).ordered and #some[2] or 0, 2 do
    local entry = some[2][i]
    local n = unpack_from('>I7', entry)
    local is_block = #entry == 8 or #entry == 12
    local b = is_block and head_at(n)
    -- A block is in one state: all of it was taken, or nothing.
    local last = b and (b.topic == topic and b.attempt > 0 and b.size - 1 or -1) or 0
    for m = n, n + last do
      local r = head_of_front(m)
      if r and r.topic == topic then keep_front(m, r) end
    end
  end
  return some[1]
end

-- Line up some of the messages set apart; tell whether those were all.
local function line_some_up(topic)
  local name, scores, left = KEY.ready .. topic, {}, LIMITS.looked * BYTES_AS_ONE
  local found = call('ZRANGEBYSCORE', name, UNFORMED, UNFORMED, 'LIMIT', 0, math.ceil(LIMITS.looked / 4))
  if #found == 0 then return true end
  for i = 1, #found do
    local n = unpack_from('>I7', found[i], 7)
    local text = call('HGET', KEY.messages, member(n))
    local r = text and outline(text) or head_at(n)
    left = left - (text and #text or 0)
    scores[#scores + 1] = not r and PARKED or #found[i] == 14 and r.priority or line_up(r, found[i])
    scores[#scores + 1] = found[i]
    if r and #found[i] == 13 then keep_front(n, r) end
    if left <= 0 then break end
  end
  many('ZADD', name, scores)
  return false
end

local function end_forming(topic)
  local text = call('HGET', KEY.topics, topic)
  if text:byte(1) == TO_FORM then call('HSET', KEY.topics, topic, text:sub(2)) end
  call('HDEL', KEY.counts .. topic, 'form')
  settings(topic).forming = nil
  wake(topic, tonumber(call('HGET', KEY.counts .. topic, 'ready') or 0))
end

local FOLLOWING = {lanes = 'leased 0', ready = 'leased 0', leased = 'delayed 0', delayed = 'line'}

-- Do one step of forming a topic; tell whether it is formed now.
function is_formed(topic)
  if not settings(topic).forming then return true end
  local at = call('HGET', KEY.counts .. topic, 'form') or 'lanes'
  local part, cursor = at:match('^(%a+) ?(%d*)$')
  local is_done = false
  touched[topic] = true
  if part == 'line' then
    is_done = line_some_up(topic)
  elseif part == 'leased' or part == 'delayed' then
    cursor = note_fronts(topic, part, cursor)
    at = cursor == '0' and FOLLOWING[part] or part .. ' ' .. cursor
  elseif set_apart(topic, part == 'lanes') then
    at = FOLLOWING[part]
  end
  if is_done then end_forming(topic) else call('HSET', KEY.counts .. topic, 'form', at) end
  open_lanes()
  return is_done
end
end
