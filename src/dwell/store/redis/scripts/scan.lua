-- Return messages of one state, by due and number.
-- ARGV: 7 topic; 8 'delayed', 'ready', 'leased' or 'dead'; 9 due and 10 n after which to begin;
-- 11 limit. Answers {triples of due, n and text in order, one more than the limit where there are
-- so many; finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local topic, state = ARGV[7], ARGV[8]
local after_due, after_n, limit = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
-- Due and n of what may be wanted; texts are read at the end, of what is.
local entries = {}

local function add(due, n)
  if due > after_due or (due == after_due and n > after_n) then entries[#entries + 1] = {due, n} end
end

local function add_block(n)
  local b = head_at(n)
  if b.topic ~= topic then return end
  local index = index_of(names_at(n, b), b)
  for slot = 0, b.size - 1 do
    if index[3 * slot + 1] == 0 then add(index[3 * slot + 2], n + slot) end
  end
end

local function by_due(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end

-- Keep what comes first; return the due of the last of it, once there is enough.
local function cut()
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
      if #found[i] == 12 then add_block(n) else add(tonumber(found[i + 1]), n) end
    end
    local last = cut()
    if #found < 512 or (last and last < tonumber(found[#found])) then return end
    at = at + 256
  end
end

-- Look at all of a set that is ordered otherwise.
local function walk_all(name, add_loose, from)
  local found = call('ZRANGE', name, 0, -1)
  for i = 1, #found do
    local n = unpack_from('>I7', found[i], from)
    if #found[i] == from + 7 then add_block(n) else add_loose(n, found[i]) end
    if #entries > 4 * limit + 1000 then cut() end
  end
end

local function add_ready(n, entry) add((unpack_from('>I6', entry)), n) end

local function add_leased(n)
  local r = decode(call('HGET', MESSAGES, member(n)))
  if r.topic == topic then add(r.due, n) end
end

if state == 'delayed' then
  walk(key('delayed', topic), tonumber(call('HGET', key('counts', topic), 'span') or 0))
elseif state == 'dead' then
  walk(key('dead', topic), 0)
elseif state == 'ready' then
  walk_all(key('ready', topic), add_ready, 7)
else
  walk_all(LEASES, add_leased, 1)
end
cut()
table.sort(entries, by_due)
for i = 1, #entries do entries[i][3] = read(entries[i][2]) end
return {entries, finish()}
