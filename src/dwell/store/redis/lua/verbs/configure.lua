-- Set what holds for a topic from now on; `data` are its settings as MessagePack.
-- Answers {'form' where messages have to stand anew by them, else 'ok'; finish()}.
verb('configure', 2, function(topic, data)
  settle()
  local was = settings(topic)
  -- What is left of a rate stays; if it went with the settings, each change would allow more.
  if (was.rate or 0) > 0 then keep_tokens(topic, tokens_of(topic, was.rate / SHARDS)) end
  call('HSET', KEY.topics, topic, data)
  known[topic] = nil
  call('HDEL', KEY.counts .. topic, 'again_ms')
  touched[topic] = true
  if was.paused or (was.rate or 0) > 0 or (was.most_leased or 0) > 0 then
    local ready = call('HGET', KEY.counts .. topic, 'ready') or 0
    wake(topic, ready + (counts[topic] and counts[topic].ready or 0))
  end
  local of = settings(topic)
  local is_as_before = not was.ordered == not of.ordered and not was.fair == not of.fair
  return {is_as_before and 'ok' or 'form', finish()}
end)
