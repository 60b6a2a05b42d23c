-- Return the ready messages that a take would give first.
-- ARGV: 7 topic; 8 limit. Answers {pairs of n and text, finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local limit, entries = tonumber(ARGV[8]), {}
local found = call('ZRANGE', key('ready', ARGV[7]), 0, limit - 1)

local function add(n, text)
  if text and #entries < 2 * limit then
    entries[#entries + 1] = n
    entries[#entries + 1] = text
  end
end

for i = 1, #found do
  if #entries >= 2 * limit then break end
  local n = unpack_from('>I7', found[i], 7)
  if #found[i] == 13 then
    add(n, call('HGET', MESSAGES, member(n)))
  else
    local text = call('GET', block_key(n))
    local b = head_of(text)
    local messages = unpacked(text, b, n)
    for slot = 0, b.size - 1 do
      local r = messages[slot]
      if r then add(n + slot, encode(r)) end
    end
  end
end
return {entries, finish()}
