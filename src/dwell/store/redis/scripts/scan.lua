-- Return messages of one state, by due and number.
-- ARGV: 7 topic; 8 'delayed', 'ready', 'leased' or 'dead'; 9 due and 10 n after which to begin;
-- 11 limit. Answers {triples of due, n and text, not in order and perhaps more than asked for;
-- finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local topic, state = ARGV[7], ARGV[8]
local after_due, after_n, limit = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local entries = {}

local function add(due, n, text)
  if due > after_due or (due == after_due and n > after_n) then
    entries[#entries + 1] = {due, n, text}
  end
end

local function add_block(n)
  local text = call('GET', block_key(n))
  local b = head_of(text)
  if b.topic ~= topic then return end
  local messages = unpacked(text, b, n)
  for slot = 0, b.size - 1 do
    local r = messages[slot]
    if r then add(r.due, n + slot, encode(r)) end
  end
end

local function add_loose(n)
  local text = call('HGET', MESSAGES, member(n))
  local r = decode(text)
  if r.topic == topic then add(r.due, n, text) end
end

local function by_due(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end

-- The due of the last message that is wanted, once there are enough; blocks that begin after it
-- hold nothing that is.
local function last_wanted()
  if #entries <= limit then return nil end
  table.sort(entries, by_due)
  for i = #entries, limit + 2, -1 do entries[i] = nil end
  return entries[#entries][1]
end

-- Walk a set that is ordered by due, from where messages after the cursor can be.
local function walk(name, span)
  local at = call('ZCOUNT', name, '-inf', '(' .. string.format('%.0f', after_due - span))
  while true do
    local found = call('ZRANGE', name, at, at + 255, 'WITHSCORES')
    for i = 1, #found, 2 do
      local n = unpack_from('>I7', found[i])
      if #found[i] == 12 then
        add_block(n)
      elseif tonumber(found[i + 1]) > after_due or n > after_n then
        add_loose(n)
      end
    end
    local last = last_wanted()
    if #found < 512 or (last and last < tonumber(found[#found])) then return end
    at = at + 256
  end
end

-- Look at all of a set that is ordered otherwise.
local function walk_all(name, from)
  local found = call('ZRANGE', name, 0, -1)
  for i = 1, #found do
    local n = unpack_from('>I7', found[i], from)
    if #found[i] == from + 7 then add_block(n) else add_loose(n) end
    if #entries > 4 * limit + 1000 then last_wanted() end
  end
  last_wanted()
end

if state == 'delayed' then
  walk(key('delayed', topic), tonumber(call('HGET', key('counts', topic), 'span') or 0))
elseif state == 'dead' then
  walk(key('dead', topic), 0)
elseif state == 'ready' then
  walk_all(key('ready', topic), 7)
else
  walk_all(LEASES, 1)
end
table.sort(entries, by_due)
return {entries, finish()}
