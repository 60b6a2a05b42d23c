-- Return some of the messages that an owner holds: names, with the numbers of the takes; the caller reads the messages
-- without Lua. `cursor` is where to continue, 0 at first. Answers {entries as of take, without texts; where to
-- continue, 0 at the end; finish()}, or {'again', finish()}.
verb('held', 2, looking(function(owner, cursor)
  local entries = {}

  local function add(name)
    local n = unpack_from('>I7', name)
    if #name == 8 then
      local b = head_at(n)
      if owner ~= '' or not b.is_owned then entries[#entries + 1] = name .. pack('>I4', b.take) end
    else
      local r = decode(call('HGET', KEY.messages, name))
      if r.owner == owner then entries[#entries + 1] = name .. pack('>I4', r.take) end
    end
  end

  -- Leases without an owner are listed only among all leases.
  local found = owner == '' and call('ZSCAN', KEY.leased, cursor, 'COUNT', LIMITS.looked)
    or call('SSCAN', KEY.owner .. owner, cursor, 'COUNT', LIMITS.looked)
  for i = 1, #found[2], owner == '' and 2 or 1 do add(found[2][i]) end
  return {entries, tonumber(found[1]), finish()}
end))
