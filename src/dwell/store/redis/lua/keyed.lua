-- Keys: which topics have lanes, whose messages are taken key by key, and what the key of a message is. The score of a
-- ready message is its priority; or PARKED and more, beyond the reach of a take, while it must not be taken; or, in a
-- fair topic, a turn, which is above all priorities. Messages still to be formed have UNFORMED.
local PARKED, UNFORMED, FIRST_TURN = 2^45, 2^46, 2^33
local UNPARKED = '(' .. PARKED

local function is_laned(topic)
  local of = settings(topic)
  return of.ordered or of.fair or of.forming
end

-- Tell whether whole blocks of a topic may be available or parked, as in lining.lua.
local function may_be_lined(topic)
  local of = settings(topic)
  return of.ordered and not of.fair and not of.forming
end

-- Return the key of a message from its extra, which may be a part of a text; nil without a key.
local function key_of(text, at, size)
  at, size = at or 0, size or #text
  if size == 0 then return nil end
  -- Nearly all keys are short texts, with their size in the byte before them.
  local length = text:byte(at + 2) - 160
  if length >= 0 and length < 32 then return text:sub(at + 3, at + length + 2) end
  return cmsgpack.unpack(text:sub(at + 1, at + size))[1]
end

local function lane_key(topic, key) return KEY.lane .. #topic .. ':' .. topic .. key end

-- Return the key of a message of an ordered topic; nil when it may be taken independently of others.
local function ordered_key(r) return settings(r.topic).ordered and key_of(r.extra) or nil end

-- Read the fronts of messages that are about to leave a block.
local function learn_fronts_of(messages, b)
  if not settings(b.topic).ordered then return end
  local keys = {}
  for _, r in pairs(messages) do keys[#keys + 1] = key_of(r.extra) end
  learn_fronts(b.topic, keys)
end

-- Note that another message of a key may be the first now.
local function mark_key(topic, key)
  changed[topic] = changed[topic] or {}
  changed[topic][key] = true
end

-- Do the same for the key of a message.
local function mark(r)
  local key = ordered_key(r)
  if key then mark_key(r.topic, key) end
end

