-- Return the owners of some leases; `cursor` is where to continue, '0' at first. Answers {owner, topic, how many
-- messages, end of the lease, ...; where to continue, '0' at the end; finish()}, or {'again', finish()}.
verb('holders', 1, looking(function(cursor)
  local found, all = call('ZSCAN', KEY.leased, cursor, 'COUNT', LIMITS.looked), {}
  local function add(owner, topic, count, until_ms)
    all[#all + 1] = owner
    all[#all + 1] = topic
    all[#all + 1] = count
    all[#all + 1] = tonumber(until_ms)
  end
  for i = 1, #found[2], 2 do
    local name = found[2][i]
    local n = unpack_from('>I7', name)
    if #name == 8 then
      local b = head_at(n)
      add(owner_of(n, b), b.topic, b.live, found[2][i + 1])
    else
      local r = decode(call('HGET', KEY.messages, name))
      add(r.owner, r.topic, 1, found[2][i + 1])
    end
  end
  return {all, found[1], finish()}
end))
