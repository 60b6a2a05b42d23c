-- Order: which messages of a key may be taken, and when. `heads` has messages by number that were read, without their
-- bodies; `begun` has the lanes of messages that the call has taken, `ended` of messages that it deleted. `next_ones`
-- are keys whose first message is in a parked block, by the number of the block: by slot, or as a list of names.
local head_of_front, begun_of, begin_front, keep_front, may_go, park, goes, let_stand, open_lanes
-- Defined in lining.lua.
local stand_next
do
local function is_begun(r)
  return r.state == STATE.leased or (r.state == STATE.waiting and r.attempt > 0)
end

function head_of_front(n)
  if heads[n] == nil then
    local text = call('HGET', KEY.messages, member(n))
    heads[n] = text and outline(text) or packed(n) or false
  end
  return heads[n]
end

local function is_front(n, topic, key)
  if begun[n] then return begun[n] == lane_key(topic, key) end
  local r = not ended[n] and head_of_front(n)
  return r and r.topic == topic and key_of(r.extra) == key and is_begun(r)
end

-- Return the messages in progress of a key with a line, and end the line. An entry that was only available becomes a
-- loose message in the lane.
local function end_line(topic, key)
  local front = cut_line(topic, key)
  local n, entry = line.number(front), line.first(front)
  if is_front(n, topic, key) then
    write_fronts(topic, key, member(n))
    return member(n)
  end
  local r = not ended[n] and packed(n, true)
  if r and r.topic == topic and r.state == STATE.waiting then extract(n) end
  if call('ZSCORE', KEY.ready .. topic, entry) then call('ZADD', lane_key(topic, key), unpack_from('>I4', front, 3), entry) end
  write_fronts(topic, key, '')
  return ''
end

-- Return the numbers of the messages in progress of a key, '' without any; the first of them is in progress. If many
-- others are not any longer, that is written, so that they are not skipped again each time.
function begun_of(topic, key)
  learn_fronts(topic, {key})
  local text, at = fronts[topic][key], 1
  if line.is(text) then text = end_line(topic, key) end
  while at < #text and not is_front(unpack_from('>I7', text, at), topic, key) do at = at + 7 end
  if at == 1 then return text end
  text = text:sub(at)
  fronts[topic][key] = text
  if at > 7 * 16 or text == '' then write_fronts(topic, key, text) end
  return text
end

-- Make a message the front of its key, which this call takes: it is the front already, or there is no front.
function begin_front(n, r)
  local key = ordered_key(r)
  if not key then return end
  if begun_of(r.topic, key) == '' then write_fronts(r.topic, key, member(n)) end
  begun[n] = lane_key(r.topic, key)
end

-- Keep a message among the taken messages that are not done.
function keep_front(n, r)
  local key = ordered_key(r)
  if not key or not is_begun(r) then return end
  local text = begun_of(r.topic, key)
  if text:sub(-7) ~= member(n) then write_fronts(r.topic, key, text .. member(n)) end
end

-- Return which message in progress of a key may be taken again, and its place; nil while one of them is taken, or none
-- is ready.
local function next_begun(topic, key, text)
  local first, its_priority, its_entry
  for at = 1, #text, 7 do
    local n = unpack_from('>I7', text, at)
    if is_front(n, topic, key) then
      local r = not begun[n] and head_of_front(n)
      if not r or r.state == STATE.leased then return nil end
      local entry = ready_member(n, r.due)
      local is_before = not first or r.priority < its_priority or (r.priority == its_priority and is_earlier(entry, its_entry))
      if r.due <= now and is_before then first, its_priority, its_entry = n, r.priority, entry end
    end
  end
  return first, its_entry
end

-- Tell whether an entry of a lane is of a message in a parked block, which has no entry among the ready.
local function is_in_block(topic, entry)
  local due, n = unpack_from('>I6I7', entry)
  local r = packed(n, true)
  return r and r.topic == topic and r.state == STATE.waiting and r.due == due
end

-- Return the first of a lane, its score among the ready, its priority, and whether it is in a block; outdated entries
-- are removed.
local function first_of_lane(topic, name)
  while true do
    local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    if not first[1] then return nil end
    local score = tonumber(call('ZSCORE', KEY.ready .. topic, first[1]) or nil)
    if score then return first[1], score, tonumber(first[2]), false end
    if is_in_block(topic, first[1]) then return first[1], PARKED + first[2], tonumber(first[2]), true end
    call('ZREM', name, first[1])
  end
end

local function is_behind(priority, entry, its_priority, its_entry)
  return its_priority < priority or (its_priority == priority and is_earlier(its_entry, entry))
end

-- Tell whether a ready message may be taken: it is the next in progress, or the first if none is in progress.
function may_go(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local text = begun_of(r.topic, key)
  if text ~= '' then return next_begun(r.topic, key, text) == n end
  local first, _, priority = first_of_lane(r.topic, lane_key(r.topic, key))
  return not first or not is_behind(r.priority, ready_member(n, r.due), priority, first)
end

-- Remove the first entry from its lane; false if this entry is not the first.
local function pop_first(r, key, entry)
  local name = lane_key(r.topic, key)
  local popped = call('ZPOPMIN', name)
  if not popped[1] or popped[1] == entry then return true end
  call('ZADD', name, popped[2], popped[1])
  local first, score, priority = first_of_lane(r.topic, name)
  if not first or not is_behind(r.priority, entry, priority, first) then
    call('ZREM', name, entry)
    return true
  end
  -- A parked first entry, though no message of its key is in progress, is made available again.
  if score >= PARKED then mark(r) end
  return false
end

-- Park a ready message behind another of its key.
function park(n, r, key)
  local entry = ready_member(n, r.due)
  call('ZADD', lane_key(r.topic, key), r.priority, entry)
  call('ZADD', KEY.ready .. r.topic, PARKED + r.priority, entry)
end

-- Make a message that is taken from an ordered topic a front of its key; or park it, and return false.
function goes(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local entry = ready_member(n, r.due)
  learn_fronts(r.topic, {key})
  local front = fronts[r.topic][key]
  if line.is(front) and line.first(front) == entry then
    begun[n] = lane_key(r.topic, key)
    return true
  end
  local text = begun_of(r.topic, key)
  if text ~= '' and next_begun(r.topic, key, text) == n then
    leave_ready(r, entry)
  elseif text ~= '' or not pop_first(r, key, entry) then
    park(n, r, key)
    return false
  end
  begin_front(n, r)
  return true
end

-- Make a parked message of a key available. An available message that comes after it gives up its place.
local function stand(topic, key, entry, score, before)
  local ready = KEY.ready .. topic
  local its = before and before ~= entry and tonumber(call('ZSCORE', ready, before) or nil)
  if its and its < PARKED then
    local priority = call('ZSCORE', lane_key(topic, key), before)
    call('ZADD', ready, its, entry, PARKED + (priority or 0), before)
  else
    call('ZADD', ready, settings(topic).fair and next_turn(topic, key) or score - PARKED, entry)
  end
end

-- Schedule the first of a line, in a parked block, to be made available; its block's number is given, or its line is
-- read. Tell whether it is the only one of its block so far.
function let_stand(topic, key, block)
  local n = not block and line.number(fronts[topic][key])
  local first = block or n - n % 64
  local some = next_ones[first]
  local is_alone = not some
  if is_alone then some = {topic = topic, keys = {}, names = {}}; next_ones[first] = some end
  if block then some.names[#some.names + 1] = key else some.keys[n % 64] = key end
  return is_alone
end

-- Make the first of a lane available, and let it lead the line. A message of a parked block does so together with
-- others of that block.
local function open_lane_of(topic, key)
  local name = lane_key(topic, key)
  local entry, score, priority, is_packed = first_of_lane(topic, name)
  if not entry or not may_be_lined(topic) then
    if fronts[topic][key] ~= '' then write_fronts(topic, key, '') end
    return entry, score
  end
  call('ZREM', name, entry)
  local has_others = call('EXISTS', name) == 1
  write_fronts(topic, key, (has_others and 'q+' or 'q ') .. pack('>I4', priority) .. entry)
  if not is_packed then return entry, score end
  let_stand(topic, key)
end

-- Make the next message of a key available, because nothing holds it back now.
local function open_lane(topic, key)
  local text = begun_of(topic, key)
  local before = firsts[topic] and firsts[topic][key]
  local entry, score, next
  if text == '' then
    entry, score = open_lane_of(topic, key)
  else
    next, entry = next_begun(topic, key, text)
    score, before = next and tonumber(call('ZSCORE', KEY.ready .. topic, entry) or nil), nil
  end
  if score and score < UNFORMED then
    if score >= PARKED then stand(topic, key, entry, score, before) end
    wake(topic, 1)
  end
end

local function open_changed()
  local all = changed
  changed = {}
  for topic, of in pairs(all) do
    local keys = {}
    for key in pairs(of) do keys[#keys + 1] = key end
    learn_fronts(topic, keys)
    for i = 1, #keys do open_lane(topic, keys[i]) end
  end
end

-- Make the next message available for each key whose first may have changed, and write the fronts.
function open_lanes()
  while next(changed) or next(next_ones) do
    open_changed()
    stand_next()
  end
  write_down_fronts()
  firsts = {}
end
end
