-- Remember ids that were acked in another shard; the memory of an id that is in use here counts again when it is free.
-- The topic is known here from now on. The list: id and time, alternating. Answers {'ok', finish()}.
verb('remember', 1, function(topic)
  local topic, names = topic, {}
  local last = now

  -- Return the later of two ends, the present and the given one.
  local function later(before, ends) return string.format('%.0f', math.max(tonumber(before or 0), tonumber(ends))) end

  for i = rest, #ARGV, 2 do
    local id, ends = ARGV[i], ARGV[i + 1]
    if number_of(topic, id) then
      call('HSET', KEY.earlier .. topic, id, later(call('HGET', KEY.earlier .. topic, id) or nil, ends))
    else
      ends = later(remembered_until(call('HGET', KEY.ids .. topic, id) or nil), ends)
      call('HSET', KEY.ids .. topic, id, remembered(tonumber(ends)))
      names[#names + 1] = id
      last = math.max(last, tonumber(ends))
    end
  end
  if #names > 0 then
    if not call('HGET', KEY.known, topic) then call('HSET', KEY.known, topic, 'mixed') end
    names[#names + 1] = topic
    call('ZADD', KEY.forgets, last, cmsgpack.pack(names))
  end
  return {'ok', finish()}
end)
