-- Remember ids that were acked in another shard.
-- ARGV: 7 topic; then id and until when. Answers {'ok', finish()}.
local topic, names = ARGV[7], {}
local last = now
for i = 8, #ARGV, 2 do
  if not number_of(topic, ARGV[i]) then
    call('HSET', key('ids', topic), ARGV[i], '\255' .. pack('>I6', tonumber(ARGV[i + 1])))
    names[#names + 1] = ARGV[i]
    last = math.max(last, tonumber(ARGV[i + 1]))
  end
end
if #names > 0 then
  names[#names + 1] = topic
  call('ZADD', FORGETS, last, cmsgpack.pack(names))
end
return {'ok', finish()}
