-- Return some of the messages that an owner holds: names, with the numbers of the takes; the caller reads the messages
-- without Lua. `cursor` is where to continue, 0 at first. The list: names, which are looked at in place of others.
-- Answers {entries as of take, without texts; the size of each; names to ask for again, if messages are large; where to
-- continue, 0 at the end; finish()}, or {'again', finish()}.
verb('held', 2, looking(function(owner, cursor)
  local entries, sizes, later, bytes = {}, {}, {}, LIMITS.looked * BYTES_AS_ONE

  local function add(name)
    local n = unpack_from('>I7', name)
    local take, size = nil, 0
    if #name == 8 then
      local b = head_at(n)
      if owner ~= '' or not b.is_owned then take = b.take end
    else
      local text = call('HGET', KEY.messages, name)
      local r = decode(text)
      size = #text
      if r.owner == owner then take = r.take end
    end
    bytes = bytes - size
    if not take then return end
    entries[#entries + 1] = name .. pack('>I4', take)
    sizes[#sizes + 1] = size
  end

  -- Leases without an owner are listed only among all leases.
  local found, step = {cursor, {}}, owner == '' and rest > #ARGV and 2 or 1
  if rest > #ARGV then
    found = owner == '' and call('ZSCAN', KEY.leased, cursor, 'COUNT', LIMITS.looked)
      or call('SSCAN', KEY.owner .. owner, cursor, 'COUNT', LIMITS.looked)
  end
  for i = rest, #ARGV do
    if call('ZSCORE', KEY.leased, ARGV[i]) then found[2][#found[2] + 1] = ARGV[i] end
  end
  for i = 1, #found[2], step do
    if bytes > 0 then add(found[2][i]) else later[#later + 1] = found[2][i] end
  end
  return {entries, sizes, later, tonumber(found[1]), finish()}
end))
