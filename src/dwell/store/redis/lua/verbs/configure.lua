-- Change the settings of a topic. `data` are settings as MessagePack: the changes, if `version` is '', else all of them
-- from another shard, which count if they are newer than the present settings. Answers {'form' when messages have to be
-- rearranged, else 'ok'; all settings as MessagePack; their version; finish()}. A version grows with each change; it is
-- a time, so that it is higher than any lost version.
verb('configure', 3, kept(function(topic, data, version)
  settle()
  local was, own = settings(topic), tonumber(call('HGET', KEY.versions, topic) or 0)
  if version ~= '' and tonumber(version) <= own then return {was.forming and 'form' or 'ok', data, version, finish()} end
  local of = {}
  for name, value in pairs(was) do of[name] = value end
  for name, value in pairs(cmsgpack.unpack(data)) do of[name] = value end
  of.forming = nil
  if version == '' then
    data, version = cmsgpack.pack(of), string.format('%.0f', math.max(own + 1, now))
    -- The entry stays until the other shards follow.
    if SHARDS > 1 then call('HSET', KEY.unsettled, topic, version) end
  end
  call('HSET', KEY.versions, topic, version)
  -- The tokens left of a rate are kept; if they were dropped with the settings, each change would allow more.
  if (was.rate or 0) > 0 then keep_tokens(topic, tokens_of(topic, was.rate / SHARDS)) end
  call('HDEL', KEY.counts .. topic, 'again_ms')
  -- It is listed from now on, also without a message.
  call('HSETNX', KEY.known, topic, '')
  local is_to_form = was.forming
  if not was.ordered ~= not of.ordered or not was.fair ~= not of.fair then is_to_form = begin_forming(topic, was) end
  call('HSET', KEY.topics, topic, is_to_form and string.char(TO_FORM) .. data or data)
  known[topic] = nil
  touched[topic] = true
  if was.paused or (was.rate or 0) > 0 or (was.most_leased or 0) > 0 then
    local ready = call('HGET', KEY.counts .. topic, 'ready') or 0
    wake(topic, ready + (counts[topic] and counts[topic].ready or 0))
  end
  return {is_to_form and 'form' or 'ok', data, version, finish()}
end))

-- Note that all shards have settings by now. The list: topic and version, as in `unsettled`, alternating. Answers
-- {'ok', finish()}.
verb('settled', 0, function()
  for i = rest, #ARGV, 2 do
    if call('HGET', KEY.unsettled, ARGV[i]) == ARGV[i + 1] then call('HDEL', KEY.unsettled, ARGV[i]) end
  end
  return {'ok', finish()}
end)
