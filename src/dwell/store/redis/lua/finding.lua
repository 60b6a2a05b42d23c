-- Finding: a message by its number or its id, brought up to the present time. Return a message by its number, without
-- any other change; nil if it is gone.
local function load(n)
  local text = call('HGET', KEY.messages, member(n))
  local r = text and decode(text) or extract(n)
  if not r then return nil end
  if r.state == STATE.leased and r.ends <= now then
    lapse(n, r)
  elseif r.state == STATE.waiting and r.expires > 0 and r.expires <= now then
    lift(n, r)
    expire(n, r)
  end
  return r
end

-- Return the same, but leave a message of a block in it, marked, unless due work has to move it.
local function find(n)
  if call('HEXISTS', KEY.messages, member(n)) == 1 then return load(n) end
  local r = packed(n, true)
  if r and r.state == STATE.leased and r.ends <= now then return load(n) end
  return r
end

-- Return the number of a message by its id; nil without such a message.
local function number_of(topic, id)
  if is_made(id) then
    local n = #id < 16 and tonumber(id:sub(2), 16)
    return n and n % 256 == SHARD and floor(n / 256) or nil
  end
  local n = call('HGET', KEY.ids .. topic, id)
  return n and not remembered_until(n) and unpack_from('>I6', n) or nil
end

-- Tell whether a message has another version than the version at a place of `versions`, 8 bytes each; '' names none. A
-- version covers everything that a change alters, as in records.py: the take, and a checksum of the other numbers.
local function is_changed(n, r, versions, place)
  if versions == '' then return false end
  local take, sum = unpack_from('>I4I4', versions, 8 * place + 1)
  return r.take ~= take or (n + 3 * r.due + 5 * r.ends + 65537 * r.attempt + 2^28 * r.state) % 2^32 ~= sum
end

-- Run an action on each message of a topic that an id names, if it has the given version; return a byte for each, or
-- for the first of them when messages are large: the caller sends the others again, unless `is_all`.
local function each_named(topic, versions, act, is_all)
  local results, left = {}, is_all and math.huge or LIMITS.looked
  for i = rest, #ARGV do
    local n = number_of(topic, ARGV[i])
    local r = n and find(n)
    if r and r.topic == topic and r.id == ARGV[i] and (r.state == STATE.leased or not is_changed(n, r, versions, i - rest)) then
      results[#results + 1] = act(n, r, i)
      left = left - (r.body and #r.body or 0) / BYTES_AS_ONE
    else
      results[#results + 1] = RESULT.unknown
    end
    left = left - 1
    if left <= 0 then break end
  end
  return table.concat(results)
end
