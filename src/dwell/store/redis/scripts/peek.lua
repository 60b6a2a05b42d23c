-- Return the ready messages that a take would give first.
-- ARGV: 7 topic; 8 limit. Answers {pairs of n and text, finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local limit, found = tonumber(ARGV[8]), {}
local ready = call('ZRANGE', key('ready', ARGV[7]), 0, limit, 'WITHSCORES')

local function add(place, due, n, text)
  found[#found + 1] = {tonumber(place), due, n, text}
end

local function add_block(place, due, n)
  local text = call('GET', block_key(n))
  local messages = unpacked(text, head_of(text), n)
  for slot = 0, 63 do
    if messages[slot] then add(place, due, n + slot, encode(messages[slot])) end
  end
end

-- What was taken out of a block stands behind it in the set, and among its messages in the order.
local last_block = -1
for i = 1, #ready, 2 do
  local due, n = unpack_from('>I6I7', ready[i])
  if #found >= limit and floor(n / 64) ~= last_block then break end
  if #ready[i] == 13 then
    add(ready[i + 1], due, n, call('HGET', MESSAGES, member(n)))
  else
    last_block = floor(n / 64)
    add_block(ready[i + 1], due, n)
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  if a[2] ~= b[2] then return a[2] < b[2] end
  return a[3] < b[3]
end)
local entries = {}
for i = 1, math.min(#found, limit) do
  entries[2 * i - 1] = found[i][3]
  entries[2 * i] = found[i][4]
end
return {entries, finish()}
