-- Compare the counts of topics with the messages seen, if nothing has happened since; `repair` is '1' to correct at
-- most `limit` of them, `position` is the next event's position then. The list: topics, each with its counts then, as
-- one text, and the numbers of messages seen. Answers {topics whose counts were wrong; finish()}.
verb('recount', 3, function(repair, limit, position)
  local STATES, wrong = {'delayed', 'ready', 'leased', 'dead'}, {}

  -- A message that falls due moves from one count to another without an event.
  local function is_as_then(topic, counted)
    local of = call('HMGET', KEY.counts .. topic, unpack(STATES))
    for i = 1, 4 do of[i] = of[i] or '0' end
    return table.concat(of, ' ') == counted
  end

  local is_still = (call('HGET', KEY.meta, 'position') or '0') == position
  for i = rest, is_still and #ARGV or 0, 6 do
    local topic, counted = ARGV[i], ARGV[i + 1]
    local is_right = counted == table.concat(ARGV, ' ', i + 2, i + 5) and call('HEXISTS', KEY.known, topic) == 1
    local is_wrong = not is_right and is_as_then(topic, counted)
    if is_wrong and #wrong < tonumber(limit) then
      wrong[#wrong + 1] = topic
      if repair == '1' then
        for at = 1, 4 do call('HSET', KEY.counts .. topic, STATES[at], ARGV[i + 1 + at]) end
        call('HSETNX', KEY.known, topic, 'mixed')
      end
    end
  end
  return {wrong, finish()}
end)
