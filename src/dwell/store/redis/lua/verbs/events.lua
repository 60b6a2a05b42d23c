-- Return events from a position on, `at_least` events if there are as many; `stream` is 'events' of this shard, or
-- 'log' of all. Answers {entries of the stream, the position of the oldest kept event, the position of the next event,
-- names and start positions of lives, alternating, finish()}, or {'again', finish()}.
verb('events', 3, looking(function(position, at_least, stream)
  local done = finish()
  local name, limit = KEY[stream], tonumber(at_least)
  local ends = tonumber(call('HGET', KEY.meta, stream == 'log' and 'logged' or 'position') or 0)
  local oldest = call('XRANGE', name, '-', '+', 'COUNT', 1)[1]
  local first = oldest and tonumber(oldest[1]:match('%d+')) - oldest[2][2] or ends
  local entries, number, from = {}, 0, '(' .. string.format('%.0f', tonumber(position)) .. '-0'
  while number < limit do
    local found = call('XRANGE', name, from, '+', 'COUNT', 64)
    for i = 1, #found do
      entries[#entries + 1] = found[i]
      number = number + found[i][2][2]
      if number >= limit + 10000 then break end
    end
    if #found < 64 then break end
    from = '(' .. found[#found][1]
  end
  local names = {}
  for _, life in ipairs(lives.all()) do
    names[#names + 1] = life[1]
    names[#names + 1] = stream == 'log' and life[5] or life[4]
  end
  return {entries, first, ends, names, done}
end))
