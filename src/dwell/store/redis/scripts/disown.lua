-- Let go of messages that another shard has taken in.
-- ARGV: from 7 on numbers n. Answers {'ok', finish()}.
for i = 7, #ARGV do
  local n = tonumber(ARGV[i])
  local text = call('HGET', MESSAGES, member(n))
  local r = text and decode(text) or extract(n)
  if r then
    lift(n, r)
    call('HDEL', MESSAGES, member(n))
    if not is_made(r.id) then
      call('HDEL', key('ids', r.topic), r.id)
      call('HDEL', key('earlier', r.topic), r.id)
    end
    if n % 64 > 0 or call('EXISTS', block_key(n)) == 0 then leave({n}) end
  end
end
return {'ok', finish()}
