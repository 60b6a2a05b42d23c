-- Find what only a part of the shard knows.
-- ARGV: 7 '1' to put it right; 8 limit.
-- Answers {topic, id, n, problem, ...; finish()}.
local repair, limit, found = ARGV[7] == '1', tonumber(ARGV[8]), {}

local function tell(topic, id, n, problem, mend)
  if #found >= 4 * limit then return end
  if repair then mend() end
  for _, value in ipairs({topic, id, n, problem}) do found[#found + 1] = value end
end

local function is_there(name, n)
  if #name == 8 or #name == 12 or #name == 14 then return call('EXISTS', block_key(n)) == 1 end
  return call('HEXISTS', MESSAGES, member(n)) == 1
end

-- Members of sets whose message or block is gone.
local function check_set(topic, name, from)
  for _, entry in ipairs(call('ZRANGE', name, 0, -1)) do
    local n = unpack_from('>I7', entry, from)
    if not is_there(entry, n) then
      tell(topic, '', n, 'no body', function() call('ZREM', name, entry) end)
    end
  end
end

local actual = {}
local function add(topic, state, number)
  if not actual[topic] then actual[topic] = {delayed = 0, ready = 0, leased = 0, dead = 0} end
  actual[topic][state] = actual[topic][state] + number
end

-- Where the set of its state knows a message; nil where none does.
local function place_of(r, n, mark)
  if call('ZSCORE', key('delayed', r.topic), delayed_member(n, r.priority) .. mark) then return 'delayed' end
  if call('ZSCORE', key('ready', r.topic), ready_member(n, r.due) .. mark) then return 'ready' end
  if call('ZSCORE', LEASES, member(n) .. mark) then return 'leased' end
  return mark == '' and call('ZSCORE', key('dead', r.topic), member(n)) and 'dead' or nil
end

local topics = call('HKEYS', base .. ':known')
for _, topic in ipairs(topics) do
  check_set(topic, key('delayed', topic), 1)
  check_set(topic, key('ready', topic), 7)
  check_set(topic, key('dead', topic), 1)
  check_set(topic, key('expiring', topic), 1)
  add(topic, 'delayed', 0)
end
check_set('', LEASES, 1)

for _, dir in ipairs(call('ZRANGE', DIRS, 0, -1)) do
  for _, place in ipairs(call('SMEMBERS', base .. ':dir:' .. dir)) do
    local n = dir * 512 + tonumber(place)
    local text = call('HGET', MESSAGES, member(n))
    local packed = n % 64 == 0 and call('GET', block_key(n))
    if not text and not packed then tell('', '', n, 'no body', function() leave({n}) end) end
    if packed then
      local b = head_of(packed)
      local state = place_of(b, n, 'b')
      if state then
        add(b.topic, state, b.live)
      else
        tell(b.topic, ids_of(packed, b, n)[1], n, 'no state', function()
          b.state, b.ends = WAITING, 0
          call('SETRANGE', block_key(n), 0, string.char(WAITING))
          call('ZADD', key('delayed', b.topic), b.due, delayed_member(n, b.priority) .. 'b')
          add(b.topic, 'delayed', b.live)
        end)
      end
    end
  end
end

for _, name in ipairs(call('HKEYS', MESSAGES)) do
  local n = unpack_from('>I7', name)
  local r = decode(call('HGET', MESSAGES, name))
  local state = place_of(r, n, '')
  if state then
    add(r.topic, state, 1)
  else
    tell(r.topic, r.id, n, 'no state', function()
      r.state, r.ends, r.owner = WAITING, 0, ''
      call('ZADD', key('delayed', r.topic), r.due, delayed_member(n, r.priority))
      enter({n})
      save(n, r)
      add(r.topic, 'delayed', 1)
    end)
  end
end

for _, topic in ipairs(topics) do
  local ids = call('HGETALL', key('ids', topic))
  for i = 1, #ids, 2 do
    local n = ids[i] ~= '' and not remembered_until(ids[i + 1]) and unpack_from('>I6', ids[i + 1]) or nil
    local text = n and read(n)
    local r = text and decode(text)
    if n and (not r or r.id ~= ids[i] or r.topic ~= topic) then
      tell(topic, ids[i], n, 'no message', function() call('HDEL', key('ids', topic), ids[i]) end)
    end
  end
  local of = actual[topic] or {}
  for _, state in ipairs({'delayed', 'ready', 'leased', 'dead'}) do
    local counted = tonumber(call('HGET', key('counts', topic), state) or 0)
    if counted ~= (of[state] or 0) then
      tell(topic, '', 0, 'no message', function() call('HSET', key('counts', topic), state, of[state] or 0) end)
    end
  end
  touched[topic] = true
end
return {found, finish()}
