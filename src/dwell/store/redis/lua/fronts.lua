-- Fronts: of each key of an ordered topic the message that was taken and is not done.
local function is_begun(r)
  return r.state == STATE.leased or (r.state == STATE.waiting and r.attempt > 0)
end

-- Return the number of the front of a key; nil when there is none, or it is done.
local function front_of(topic, key)
  local name = call('HGET', KEY.fronts .. topic, key)
  if not name then return nil end
  local n = unpack_from('>I7', name)
  if begun[n] then return n end
  local text = read(n)
  local r = text and decode(text)
  return r and r.topic == topic and key_of(r.extra) == key and is_begun(r) and n or nil
end

-- Let a message that this call takes, or that was taken and is not done, be the front of its key.
local function set_front(n, r)
  local key = ordered_key(r)
  if not key then return end
  call('HSET', KEY.fronts .. r.topic, key, member(n))
  begun[n] = true
end

-- Tell whether a ready message may be taken: it is the front, or there is none and it is the first.
local function may_go(n, r)
  local key = ordered_key(r)
  if not key then return true end
  local front = front_of(r.topic, key)
  if front then return front == n end
  local name, entry = lane_key(r.topic, key), ready_member(n, r.due)
  call('ZADD', name, r.priority, entry)
  return call('ZRANGE', name, 0, 0)[1] == entry
end

local function park(n, r)
  call('ZADD', KEY.ready .. r.topic, PARKED + r.priority, ready_member(n, r.due))
end

-- Let the first of a key be taken when nothing holds it back any more.
local function open_lane(topic, key)
  if front_of(topic, key) then return end
  call('HDEL', KEY.fronts .. topic, key)
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
  for topic, keys in pairs(changed) do
    for key in pairs(keys) do open_lane(topic, key) end
  end
  changed = {}
end
