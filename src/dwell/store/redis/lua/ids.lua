local function is_made(id) return id:byte(1) == 126 end

-- Ids: a caller's id is a field of `ids`. It has the number of its message in 6 bytes, or, after an ack, 255 and the
-- time until it is remembered. When such an id is used again, `earlier` keeps that.
local function remembered_until(value)
  return value and value:byte(1) == 255 and unpack_from('>I6', value, 2) or nil
end

local function remembered(ends) return '\255' .. pack('>I6', ends) end

-- Free an id whose message is gone without an ack.
local function free_id(topic, id)
  if is_made(id) then return end
  local ends = call('HGET', KEY.earlier .. topic, id)
  if ends then
    call('HDEL', KEY.earlier .. topic, id)
    if tonumber(ends) > now then return call('HSET', KEY.ids .. topic, id, remembered(ends)) end
  end
  call('HDEL', KEY.ids .. topic, id)
end

-- The result of an ack is a field of `results`: 6 bytes of the time until it is kept, and the result.
function results.of(topic, id)
  local value = call('HGET', KEY.results .. topic, id)
  local ends = value and unpack_from('>I6', value)
  return ends and ends > now and value:sub(7) or nil, ends
end

-- Note when some ids are to be forgotten; return how many entries that takes.
function results.plan(topic, names, ends)
  local most = LIMITS.forgotten
  for at = 1, #names, most do
    local part = {unpack(names, at, math.min(at + most - 1, #names))}
    part[#part + 1] = topic
    call('ZADD', KEY.forgets, ends, cmsgpack.pack(part))
  end
  return math.ceil(#names / most)
end

-- Keep results of acks, `kept` has id and result alternating, unless the topic remembers nothing. Return as `plan` does.
function results.keep(topic, kept)
  local ends = now + settings(topic).remember_ms
  if ends <= now then return 0 end
  local fields, names, head = {}, {}, pack('>I6', ends)
  for i = 1, #kept, 2 do
    fields[#fields + 1], fields[#fields + 2] = kept[i], head .. kept[i + 1]
    names[#names + 1] = kept[i]
  end
  many('HSET', KEY.results .. topic, fields)
  return results.plan(topic, names, ends)
end

-- Remember acked ids, or free them when the topic remembers none.
local function remember(topic, names)
  local earlier = call('EXISTS', KEY.earlier .. topic) == 1 and KEY.earlier .. topic
  local ends = now + settings(topic).remember_ms
  local fields, old, value = {}, {}, remembered(ends)
  for i = 1, #names do
    local before = earlier and tonumber(call('HGET', earlier, names[i]) or 0) or 0
    if before > 0 then call('HDEL', earlier, names[i]) end
    if math.max(before, ends) <= now then
      old[#old + 1] = names[i]
    else
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = before > ends and remembered(before) or value
    end
  end
  many('HDEL', KEY.ids .. topic, old)
  many('HSET', KEY.ids .. topic, fields)
  return results.plan(topic, names, ends)
end

local function forget(n, r)
  call('HDEL', KEY.messages, member(n))
  free_id(r.topic, r.id)
  if n % 64 > 0 or call('EXISTS', KEY.block .. floor(n / 64)) == 0 then leave({n}) end
end

local function is_used_up(attempt, most, topic)
  return attempt >= (most > 0 and most or settings(topic).max_attempts)
end
