-- Return messages by place, from `start` to before `stop`, `limit` at most or a few more. Answers {pairs of n and text;
-- the place of each; next place or 0; the place after the last one ever used; finish()}, or {'again', finish()}.
verb('sweep', 3, looking(function(start, stop, limit)
  start, stop, limit = tonumber(start), tonumber(stop), tonumber(limit)
  local all = lives.all()
  local last = lives.place_of((tonumber(call('HGET', KEY.meta, 'block') or 0) + 1) * 64, all)
  start, stop = lives.number_at(start, all), lives.number_at(stop, all)
  local entries, places, next_n = {}, {}, nil

  local function add_all(dir)
    local found = {}
    for _, place in ipairs(call('SMEMBERS', KEY.dir .. dir)) do
      local n = dir * 512 + tonumber(place)
      local loose = n >= start and n < stop and call('HGET', KEY.messages, member(n))
      if loose then found[#found + 1] = {n, loose} end
      local text = n % 64 == 0 and n + 63 >= start and n < stop and call('GET', block_key(n))
      local b = text and head_of(text)
      local messages = b and unpacked(text, b, n)
      for slot = 0, b and b.size - 1 or -1 do
        local r = n + slot >= start and n + slot < stop and messages[slot]
        if r then found[#found + 1] = {n + slot, encode(r)} end
      end
    end
    table.sort(found, function(a, b) return a[1] < b[1] end)
    for i = 1, #found do
      if #entries >= 2 * limit then
        next_n = found[i][1]
        return false
      end
      entries[#entries + 1] = found[i][1]
      entries[#entries + 1] = found[i][2]
      places[#places + 1] = lives.place_of(found[i][1], all)
    end
    return true
  end

  if start < stop and limit > 0 then
    local dirs = call('ZRANGEBYSCORE', KEY.dirs, floor(start / 512), '(' .. math.ceil(stop / 512), 'LIMIT', 0, 5)
    for i = 1, #dirs do
      if i == 5 then next_n = math.max(dirs[i] * 512, start) elseif not add_all(tonumber(dirs[i])) then break end
    end
  end
  return {entries, places, next_n and lives.place_of(next_n, all) or 0, last, finish()}
end))
