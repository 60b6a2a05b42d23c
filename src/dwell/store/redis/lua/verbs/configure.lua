-- Set what holds for a topic from now on; `data` are its settings as MessagePack.
-- Answers {'form' where messages have to stand anew by them, else 'ok'; finish()}.
verb('configure', 2, function(topic, data)
  settle()
  local was, of = settings(topic), cmsgpack.unpack(data)
  -- What is left of a rate stays; if it went with the settings, each change would allow more.
  if (was.rate or 0) > 0 then keep_tokens(topic, tokens_of(topic, was.rate / SHARDS)) end
  call('HDEL', KEY.counts .. topic, 'again_ms')
  local is_to_form = was.forming
  if not was.ordered ~= not of.ordered or not was.fair ~= not of.fair then is_to_form = begin_forming(topic, was) end
  call('HSET', KEY.topics, topic, is_to_form and string.char(TO_FORM) .. data or data)
  known[topic] = nil
  touched[topic] = true
  if was.paused or (was.rate or 0) > 0 or (was.most_leased or 0) > 0 then
    local ready = call('HGET', KEY.counts .. topic, 'ready') or 0
    wake(topic, ready + (counts[topic] and counts[topic].ready or 0))
  end
  return {is_to_form and 'form' or 'ok', finish()}
end)
