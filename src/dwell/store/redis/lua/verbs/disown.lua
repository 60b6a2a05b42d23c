-- Drop messages that another shard has adopted. The list: numbers n. Answers {'ok', finish()}.
verb('disown', 0, function()
  for i = rest, #ARGV do
    local n = tonumber(ARGV[i])
    local text = call('HGET', KEY.messages, member(n))
    local r = text and decode(text) or extract(n)
    if r then
      lift(n, r)
      call('HDEL', KEY.messages, member(n))
      if not is_made(r.id) then
        call('HDEL', KEY.ids .. r.topic, r.id)
        call('HDEL', KEY.earlier .. r.topic, r.id)
      end
      if n % 64 > 0 or call('EXISTS', block_key(n)) == 0 then leave({n}) end
    end
  end
  return {'ok', finish()}
end)
