-- Fronts: of each key of an ordered topic the messages that were taken and are not done: one, and more
-- only when they were taken before the topic was ordered. They come again one at a time, in their order.
-- `fronts` has the numbers that the call has looked up, by topic and key; `new_fronts` those that it has
-- yet to write down; `heads` the messages of such numbers, without their bodies. `begun` are those that
-- it has taken, `ended` those that it forgot.
local function is_begun(r)
  return r.state == STATE.leased or (r.state == STATE.waiting and r.attempt > 0)
end

-- Look up the fronts of some keys together.
local function learn_fronts(topic, keys)
  local of, missing = fronts[topic] or {}, {}
  fronts[topic] = of
  for i = 1, #keys do
    if of[keys[i]] == nil then
      of[keys[i]] = {}
      missing[#missing + 1] = keys[i]
    end
  end
  if #missing == 0 then return end
  local texts = look_up('HMGET', KEY.fronts .. topic, missing)
  for i = 1, #missing do
    local numbers, text = of[missing[i]], texts[i] or ''
    for at = 1, #text, 7 do numbers[#numbers + 1] = unpack_from('>I7', text, at) end
  end
end

local function head_of_front(n)
  if heads[n] == nil then
    local text = call('HGET', KEY.messages, member(n))
    heads[n] = text and outline(text) or packed(n) or false
  end
  return heads[n]
end

-- Return the numbers of the messages of a key that are begun.
local function begun_of(topic, key)
  learn_fronts(topic, {key})
  local found, numbers = {}, fronts[topic][key]
  for i = 1, #numbers do
    local n = numbers[i]
    local r = not ended[n] and not begun[n] and head_of_front(n)
    if begun[n] or (r and r.topic == topic and key_of(r.extra) == key and is_begun(r)) then found[#found + 1] = n end
  end
  return found
end

-- Let a message be among the fronts of its key, beside those that are.
local function add_front(n, topic, key, numbers)
  for i = 1, #numbers do
    if numbers[i] == n then return end
  end
  numbers[#numbers + 1] = n
  local members, fields = {}, new_fronts[topic] or {}
  for i = 1, #numbers do members[i] = member(numbers[i]) end
  new_fronts[topic] = fields
  fields[#fields + 1] = key
  fields[#fields + 1] = table.concat(members)
  fronts[topic][key] = numbers
end

-- Let a message be among them that was taken and is not done.
local function keep_front(n, r)
  local key = ordered_key(r)
  if key and is_begun(r) then add_front(n, r.topic, key, begun_of(r.topic, key)) end
end

-- Let a message be among them that this call takes.
local function begin_front(n, r)
  local key = ordered_key(r)
  if not key then return end
  add_front(n, r.topic, key, begun_of(r.topic, key))
  begun[n] = true
end

-- Return which of the begun messages of a key may be taken again, and where it stands; nil while one of
-- them is taken, or none is ready.
local function next_begun(numbers)
  local first, its_priority, its_entry
  for i = 1, #numbers do
    local n = numbers[i]
    local r = not begun[n] and head_of_front(n)
    if not r or r.state == STATE.leased then return nil end
    local entry = ready_member(n, r.due)
    local is_before = not first or r.priority < its_priority or (r.priority == its_priority and entry < its_entry)
    if r.due <= now and is_before then first, its_priority, its_entry = n, r.priority, entry end
  end
  return first, its_entry
end

-- Return the first of a lane, its score among the ready, and its priority; what is there no more leaves.
local function first_of_lane(topic, name)
  while true do
    local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    if not first[1] then return nil end
    local score = tonumber(call('ZSCORE', KEY.ready .. topic, first[1]) or nil)
    if score then return first[1], score, tonumber(first[2]) end
    call('ZREM', name, first[1])
  end
end

local function is_behind(priority, entry, its_priority, its_entry)
  return its_priority < priority or (its_priority == priority and its_entry < entry)
end

-- Tell whether a ready message may be taken: it is the next that was begun, or none was and it is the first.
local function may_go(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local numbers = begun_of(r.topic, key)
  if #numbers > 0 then return next_begun(numbers) == n end
  local first, _, priority = first_of_lane(r.topic, lane_key(r.topic, key))
  return not first or not is_behind(r.priority, ready_member(n, r.due), priority, first)
end

-- Take the first entry out of its lane; false if this one is not the first.
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
  -- Who finds the first parked though nothing of its key is begun lets it stand again.
  if score >= PARKED then mark(r) end
  return false
end

-- Let a ready message wait behind another of its key.
local function park(n, r, key)
  local entry = ready_member(n, r.due)
  call('ZADD', lane_key(r.topic, key), r.priority, entry)
  call('ZADD', KEY.ready .. r.topic, PARKED + r.priority, entry)
end

-- Let a message that is taken of an ordered topic be a front of its key; or park it, and return false.
local function goes(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local entry, numbers = ready_member(n, r.due), begun_of(r.topic, key)
  local is_next = #numbers > 0 and next_begun(numbers) == n
  if is_next then
    leave_ready(r, entry)
  elseif #numbers > 0 or not pop_first(r, key, entry) then
    park(n, r, key)
    return false
  end
  add_front(n, r.topic, key, numbers)
  begun[n] = true
  return true
end

-- Let a parked message of a key stand among what may be taken. One that stood there, and comes after
-- it, gives up its place.
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

-- Let the next of a key be taken, as nothing holds it back any more; tell whether nothing is begun.
local function open_lane(topic, key)
  local numbers = begun_of(topic, key)
  local before = firsts[topic] and firsts[topic][key]
  local entry, score, next
  if #numbers == 0 then
    entry, score = first_of_lane(topic, lane_key(topic, key))
  else
    next, entry = next_begun(numbers)
    score, before = next and tonumber(call('ZSCORE', KEY.ready .. topic, entry) or nil), nil
  end
  if score and score < UNFORMED then
    if score >= PARKED then stand(topic, key, entry, score, before) end
    wake(topic, 1)
  end
  return #numbers == 0
end

local function open_lanes()
  for topic, fields in pairs(new_fronts) do many('HSET', KEY.fronts .. topic, fields) end
  for topic, of in pairs(changed) do
    local keys, gone = {}, {}
    for key in pairs(of) do keys[#keys + 1] = key end
    learn_fronts(topic, keys)
    for i = 1, #keys do
      local has_fronts = #fronts[topic][keys[i]] > 0
      if open_lane(topic, keys[i]) and has_fronts then
        gone[#gone + 1] = keys[i]
        fronts[topic][keys[i]] = {}
      end
    end
    many('HDEL', KEY.fronts .. topic, gone)
  end
  new_fronts, changed, firsts = {}, {}, {}
end
