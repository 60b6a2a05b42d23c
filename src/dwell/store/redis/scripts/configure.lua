-- Set what holds for a topic from now on.
-- ARGV: 7 topic; 8 its settings as MessagePack. Answers {'ok', finish()}.
settle()
local topic = ARGV[7]
local was_paused = settings(topic).paused
call('HSET', base .. ':topics', topic, ARGV[8])
known[topic] = nil
if was_paused then
  local ready = call('HGET', key('counts', topic), 'ready') or 0
  wake(topic, ready + (counts[topic] and counts[topic].ready or 0))
end
return {'ok', finish()}
