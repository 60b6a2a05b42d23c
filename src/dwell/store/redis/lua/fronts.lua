-- Fronts: of each key of an ordered topic the message that was taken and is not done.
-- `fronts` has the numbers that the call has looked up, by topic and key, false for none; `new_fronts`
-- those that it has yet to write down. `begun` are messages that it has taken, `ended` those it forgot.
local function is_begun(r)
  return r.state == STATE.leased or (r.state == STATE.waiting and r.attempt > 0)
end

-- Look up the fronts of some keys together.
local function learn_fronts(topic, keys)
  local of, missing = fronts[topic] or {}, {}
  fronts[topic] = of
  for i = 1, #keys do
    if of[keys[i]] == nil then
      of[keys[i]] = false
      missing[#missing + 1] = keys[i]
    end
  end
  if #missing == 0 then return end
  local names = look_up('HMGET', KEY.fronts .. topic, missing)
  for i = 1, #missing do of[missing[i]] = names[i] and unpack_from('>I7', names[i]) end
end

-- Return the number of the front of a key; nil when there is none, or it is done.
local function front_of(topic, key)
  learn_fronts(topic, {key})
  local n = fronts[topic][key]
  if not n or ended[n] then return nil end
  if begun[n] then return n end
  local text = read(n)
  local r = text and decode(text)
  return r and r.topic == topic and key_of(r.extra) == key and is_begun(r) and n or nil
end

-- Let a message that this call takes, or that was taken and is not done, be the front of its key.
local function set_front(n, r)
  local key = ordered_key(r)
  if not key then return end
  learn_fronts(r.topic, {})
  local fields = new_fronts[r.topic] or {}
  new_fronts[r.topic] = fields
  fields[#fields + 1] = key
  fields[#fields + 1] = member(n)
  fronts[r.topic][key], begun[n] = n, true
end

-- Tell whether an entry is the first of its lane, in which it stands from now on.
local function is_first(topic, key, priority, entry)
  local name = lane_key(topic, key)
  call('ZADD', name, priority, entry)
  return call('ZRANGE', name, 0, 0)[1] == entry
end

-- Tell whether a ready message may be taken: it is the front, or there is none and it is the first.
local function may_go(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local front = front_of(r.topic, key)
  if front then return front == n end
  return is_first(r.topic, key, r.priority, ready_member(n, r.due))
end

-- Take the first entry out of its lane; false if this one is not the first.
local function pop_first(topic, key, priority, entry)
  local name = lane_key(topic, key)
  local first = call('ZPOPMIN', name)
  if not first[1] or first[1] == entry then return true end
  call('ZADD', name, first[2], first[1])
  if not is_first(topic, key, priority, entry) then return false end
  call('ZREM', name, entry)
  return true
end

local function park(n, r)
  call('ZADD', KEY.ready .. r.topic, PARKED + r.priority, ready_member(n, r.due))
end

-- Let a message that is taken of an ordered topic be the front of its key; or park it, and return false.
local function goes(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local entry, front = ready_member(n, r.due), front_of(r.topic, key)
  if front == n then
    leave_ready(r, entry)
  elseif front or not pop_first(r.topic, key, r.priority, entry) then
    park(n, r)
    return false
  end
  set_front(n, r)
  return true
end

-- Let the first of a key be taken, as nothing holds it back any more.
local function open_lane(topic, key)
  local name = lane_key(topic, key)
  local entry = call('ZRANGE', name, 0, 0)[1]
  if entry and is_parked(topic, entry) then
    local text = call('HGET', KEY.messages, entry:sub(7))
    if text then
      stand_ready(decode(text), entry)
    else
      call('ZREM', name, entry)
    end
  end
  wake(topic, 1)
end

local function open_lanes()
  for topic, fields in pairs(new_fronts) do many('HSET', KEY.fronts .. topic, fields) end
  for topic, of in pairs(changed) do
    local keys, gone = {}, {}
    for key in pairs(of) do keys[#keys + 1] = key end
    learn_fronts(topic, keys)
    for i = 1, #keys do
      if not front_of(topic, keys[i]) then
        if fronts[topic][keys[i]] then gone[#gone + 1] = keys[i] end
        open_lane(topic, keys[i])
      end
    end
    many('HDEL', KEY.fronts .. topic, gone)
  end
  new_fronts, changed = {}, {}
end
