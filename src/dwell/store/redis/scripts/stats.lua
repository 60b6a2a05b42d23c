-- Return the counts.
-- ARGV: none of its own. Answers {topic, delayed, ready, leased, dead, ...; kind, total, ...;
-- position; finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local done = finish()
local all = {}
for _, topic in ipairs(call('HKEYS', base .. ':known')) do
  local of = call('HMGET', key('counts', topic), 'delayed', 'ready', 'leased', 'dead')
  all[#all + 1] = topic
  for i = 1, 4 do all[#all + 1] = tonumber(of[i] or 0) end
end
return {all, call('HGETALL', base .. ':totals'), tonumber(call('HGET', META, 'position') or 0), done}
