-- Return messages by place, from `start` to before `stop`, `limit` at most, and fewer if they are large. Answers {pairs of
-- n and text; the place of each; next place or 0; the place after the last one ever used; finish()}, or {'again',
-- finish()}.
verb('sweep', 3, looking(function(start, stop, limit)
  start, stop, limit = tonumber(start), tonumber(stop), tonumber(limit)
  local all = lives.all()
  local last = lives.place_of((tonumber(call('HGET', KEY.meta, 'block') or 0) + 1) * 64, all)
  start, stop = lives.number_at(start, all), lives.number_at(stop, all)
  local entries, places, next_n, bytes = {}, {}, nil, LIMITS.looked * BYTES_AS_ONE

  -- Add the messages of 64 places, the loose ones and those of a block; false when there are enough.
  local function add_some(first, is_there)
    local text = is_there[first] and first + 63 >= start and first < stop and call('GET', block_key(first))
    local b = text and head_of(text)
    local messages = b and unpacked(text, b, first) or {}
    for n = math.max(first, start), math.min(first + 63, stop - 1) do
      local message = is_there[n] and call('HGET', KEY.messages, member(n))
      message = message or messages[n - first] and encode(messages[n - first])
      if message then
        if #entries >= 2 * limit or bytes <= 0 then
          next_n = n
          return false
        end
        entries[#entries + 1] = n
        entries[#entries + 1] = message
        places[#places + 1] = lives.place_of(n, all)
        bytes = bytes - #message
      end
    end
    return true
  end

  local function add_all(dir)
    local is_there, firsts = {}, {}
    for _, place in ipairs(call('SMEMBERS', KEY.dir .. dir)) do
      local n = dir * 512 + tonumber(place)
      is_there[n], firsts[n - n % 64] = true, true
    end
    for first = dir * 512, dir * 512 + 448, 64 do
      if firsts[first] and not add_some(first, is_there) then return false end
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
