-- Return what an owner holds.
-- ARGV: 7 owner. Answers {pairs of n and text, finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local owner, entries = ARGV[7], {}

local function add(n, text)
  entries[#entries + 1] = n
  entries[#entries + 1] = text
end

if owner ~= '' then
  for _, name in ipairs(call('SMEMBERS', key('owner', owner))) do
    add(unpack_from('>I7', name), call('HGET', MESSAGES, name))
  end
  return {entries, finish()}
end
for _, name in ipairs(call('ZRANGE', LEASES, 0, -1)) do
  local n = unpack_from('>I7', name)
  if #name == 7 then
    local text = call('HGET', MESSAGES, name)
    if decode(text).owner == '' then add(n, text) end
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
