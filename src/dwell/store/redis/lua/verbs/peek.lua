-- Name the ready messages that a take would give first, and some more.
-- Answers {triples of priority, due and n; finish()}, or {'again', finish()}.
-- What was taken out of a block stands behind it in the set, and among its messages in the order.
verb('peek', 2, looking(function(topic, limit)
  if not is_formed(topic) then return {'again', finish()} end
  limit = tonumber(limit)
  local found = {}
  local most = settings(topic).ordered and math.max(limit, LIMITS.taken) or limit + 1
  local ready = call('ZRANGEBYSCORE', KEY.ready .. topic, '-inf', UNPARKED, 'WITHSCORES', 'LIMIT', 0, most)

  local function add(priority, due, n)
    for _, value in ipairs({tonumber(priority), due, n}) do found[#found + 1] = value end
  end

  local last_block = -1
  for i = 1, #ready, 2 do
    local due, n = unpack_from('>I6I7', ready[i])
    if #found >= 3 * limit and floor(n / 64) ~= last_block then break end
    if #ready[i] == 13 then
      local r = settings(topic).ordered and decode(call('HGET', KEY.messages, member(n)))
      if not r or may_go(n, r) then add(ready[i + 1], due, n) end
    else
      last_block = floor(n / 64)
      local b = head_at(n)
      local index = index_at(n, b)
      for slot = 0, b.size - 1 do
        if index[3 * slot + 1] == 0 then add(ready[i + 1], due, n + slot) end
      end
    end
  end
  return {found, finish()}
end))
