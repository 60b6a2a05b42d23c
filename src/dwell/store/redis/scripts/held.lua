-- Return the names of what an owner holds, with the numbers of the takes; the caller reads the
-- messages, past Lua.
-- ARGV: 7 owner. Answers {entries as of take, without texts; finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local owner, entries = ARGV[7], {}

local function add(name)
  local n = unpack_from('>I7', name)
  if #name == 8 then
    local b = head_at(n)
    if owner ~= '' or not b.is_owned then entries[#entries + 1] = name .. pack('>I4', b.take) end
  else
    local r = decode(call('HGET', MESSAGES, name))
    if r.owner == owner then entries[#entries + 1] = name .. pack('>I4', r.take) end
  end
end

local names = owner == '' and call('ZRANGE', LEASES, 0, -1) or call('SMEMBERS', key('owner', owner))
for i = 1, #names do add(names[i]) end
return {entries, finish()}
