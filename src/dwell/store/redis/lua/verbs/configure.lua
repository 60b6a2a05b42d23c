-- Set what holds for a topic from now on; `data` are its settings as MessagePack.
-- Answers {'ok', finish()}.
verb('configure', 2, function(topic, data)
  settle()
  local was_paused = settings(topic).paused
  call('HSET', KEY.topics, topic, data)
  known[topic] = nil
  if was_paused then
    local ready = call('HGET', KEY.counts .. topic, 'ready') or 0
    wake(topic, ready + (counts[topic] and counts[topic].ready or 0))
  end
  return {'ok', finish()}
end)
