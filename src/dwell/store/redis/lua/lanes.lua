-- Lanes: in an ordered topic, `lane` has the ready messages of a key by priority, due and arrival; messages that such a
-- topic gives are made loose first, or lined up. A ready message that must not be taken yet is parked. While no message
-- of a key is taken and not done, its first message is always available.

-- Return the line of a key without its parked messages, which move to the lane.
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

-- Add a ready, loose message to the line of its key. Return whether it is the first there, or nil when it belongs in
-- the lane.
local function join_line(r, key, entry)
  local topic = r.topic
  learn_fronts(topic, {key})
  local front = fronts[topic][key]
  if front == '' then
    write_fronts(topic, key, r.attempt > 0 and entry:sub(7) or line.head(r.priority) .. entry)
    if r.attempt > 0 then return nil end
    return true
  end
  if not line.is(front) then return nil end
  if entry:sub(7) == line.first(front):sub(7) then
    -- It led the line while in a block; or it comes again.
    if r.attempt == 0 and entry == line.first(front) then return true end
    cut_line(topic, key)
    write_fronts(topic, key, r.attempt > 0 and entry:sub(7) or '')
    mark_key(topic, key)
    return nil
  end
  if line.place(front, entry) then return false end
  local priority = unpack_from('>I4', front, 3)
  local is_before = r.priority < priority or (r.priority == priority and is_earlier(entry, line.first(front)))
  local longer = r.attempt == 0 and r.priority == priority and not is_before and line.joined(front, entry)
  if longer then
    write_fronts(topic, key, longer)
    return false
  end
  cut_line(topic, key)
  if is_before then return nil end
  call('ZADD', lane_key(topic, key), r.priority, entry)
  note_others(topic, key)
  return false
end

-- Add a ready message to its line or its lane; return its score among the ready. If only the first of a key has a turn,
-- the end of the call assigns it, and must know which was the first before.
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
  local is_first = nil
  if may_be_lined(topic) then is_first = join_line(r, key, entry) end
  if is_first == nil then call('ZADD', name, r.priority, entry) end
  return (of.fair or is_first == false) and PARKED + r.priority or r.priority
end

-- Add a newly ready message to its lane; return its score among the ready.
local function enter_ready(r, entry)
  return settings(r.topic).forming and UNFORMED or line_up(r, entry)
end

local function stand_ready(r, entry) call('ZADD', KEY.ready .. r.topic, enter_ready(r, entry), entry) end

-- Remove a message that is no longer ready from its lane, or from its line, which ends if the message led it.
local function leave_ready(r, entry)
  local of = settings(r.topic)
  local key = (of.ordered or of.forming) and key_of(r.extra)
  if not key then return end
  if call('ZREM', lane_key(r.topic, key), entry) == 1 or not may_be_lined(r.topic) then return end
  learn_fronts(r.topic, {key})
  local front = fronts[r.topic][key]
  if not line.is(front) then return end
  local at = line.place(front, entry)
  if at then
    write_fronts(r.topic, key, front:sub(1, at - 1) .. front:sub(at + 13))
  elseif line.first(front) == entry then
    cut_line(r.topic, key)
    write_fronts(r.topic, key, '')
    mark_key(r.topic, key)
  end
end

-- Remove a message that waits in a block from its place, and note when another becomes the first.
local function leave_place(r, entry)
  leave_ready(r, entry)
  local key = ordered_key(r)
  if not key then return end
  learn_fronts(r.topic, {key})
  if not line.is(fronts[r.topic][key]) then mark_key(r.topic, key) end
end

-- Return how many of `number` ready messages of a topic may be taken, or a few more if blocks are among them.
local function standing(topic, number)
  local of = settings(topic)
  if not (of.ordered or of.forming) then return number end
  return math.min(number, 64 * call('ZCOUNT', KEY.ready .. topic, '-inf', UNPARKED))
end
