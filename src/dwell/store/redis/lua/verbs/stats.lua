-- Return some of the counts; `where` is where to continue, '0' at first, `only` limits them to one topic, or is ''.
-- Answers {topic, delayed, ready, leased, dead, ...; kind, total, ...; position; where to continue, '0' at the end;
-- finish()}, or {'again', finish()}. A topic may occur twice.
verb('stats', 2, looking(function(where, only)
  local done = finish()
  local all, cursor, topics = {}, '0', {only}
  if (only or '') == '' then
    local found = call('HSCAN', KEY.known, where or '0', 'COUNT', LIMITS.topics)
    cursor, topics = found[1], {}
    for i = 1, #found[2], 2 do topics[#topics + 1] = found[2][i] end
  end
  for _, topic in ipairs(topics) do
    local of = call('HMGET', KEY.counts .. topic, 'delayed', 'ready', 'leased', 'dead')
    all[#all + 1] = topic
    for i = 1, 4 do all[#all + 1] = tonumber(of[i] or 0) end
  end
  local position = tonumber(call('HGET', KEY.meta, 'position') or 0)
  return {all, call('HGETALL', KEY.totals), position, cursor, done}
end))
