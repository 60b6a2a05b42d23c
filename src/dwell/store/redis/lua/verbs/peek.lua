-- Name the ready messages that a take would give first, and some more. Answers {triples of priority, due and n;
-- finish()}, or {'again', finish()}. Messages taken out of a block follow it in the set, and are among its messages in
-- the order. Messages that wait behind another of their key are parked, as in a take, so that the next call gets
-- further.
verb('peek', 2, looking(function(topic, limit)
  if not is_formed(topic) then return {'again', finish()} end
  limit = tonumber(limit)
  local found, parked_here, size, is_ordered = {}, 0, 0, settings(topic).ordered
  local most = is_ordered and limit + math.ceil(LIMITS.taken / 4) or limit + 1
  local ready = call('ZRANGEBYSCORE', KEY.ready .. topic, '-inf', UNPARKED, 'WITHSCORES', 'LIMIT', 0, most)

  local function add(priority, due, n)
    for _, value in ipairs({tonumber(priority), due, n}) do found[#found + 1] = value end
  end

  local last_block = -1
  for i = 1, #ready, 2 do
    local due, n = unpack_from('>I6I7', ready[i])
    if #found >= 3 * limit and floor(n / 64) ~= last_block then break end
    if #ready[i] == 13 then
      local text = is_ordered and call('HGET', KEY.messages, member(n))
      local r = text and outline(text)
      size = size + (text and #text or 0)
      if not r or may_go(n, r) then
        add(ready[i + 1], due, n)
      else
        park(n, r, ordered_key(r))
        parked_here = parked_here + 1
      end
      -- Reading large bodies takes long.
      if parked_here > 0 and size > LIMITS.taken * BYTES_AS_ONE then break end
    else
      last_block = floor(n / 64)
      -- The messages read before may have made it loose.
      local b = head_at(n)
      local is = b and b.is_mixed and unmix(n, b)
      if is == 'parked' or is == 'loose' then b, parked_here = nil, parked_here + 1 end
      if is == 'loose' then break end
      local index = b and index_at(n, b)
      for slot = 0, b and b.size - 1 or -1 do
        if index[3 * slot + 1] == 0 then add(ready[i + 1], due, n + slot) end
      end
    end
  end
  if parked_here > 0 and #found < 3 * limit then return {'again', finish()} end
  return {found, finish()}
end))
