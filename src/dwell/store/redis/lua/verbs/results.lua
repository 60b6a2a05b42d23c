-- Tell what came of messages. `watch_ms`: for so long, instances are told when messages of the topic end; 0 for not. The
-- list: ids. Answers {a list, finish()}, with three values for each id: its state, 0 for an unknown id, 1 if it waits and
-- is due, 2 if it waits, 3 leased, 4 dead, 5 done; when dead the error, when done the result, or false; until when a
-- result is kept, or the id is remembered; for the first ids only when results are large: the caller asks for the others again; or {'again', finish()} when due work comes first.
do
-- Tell of ends of a topic's messages for a time, and drop some of the topics whose time is over.
local function watch(topic, watch_ms)
  call('HSET', KEY.watched, topic, string.format('%.0f', now + watch_ms))
  local some = call('HRANDFIELD', KEY.watched, 3, 'WITHVALUES')
  for i = 1, #some, 2 do
    if tonumber(some[i + 1]) <= now then call('HDEL', KEY.watched, some[i]) end
  end
end

verb('results', 2, looking(function(topic, watch_ms)
  local told, size, is_open = {}, 0, false
  local most = now + settings(topic).remember_ms

  local function tell(state, text, ends)
    is_open = is_open or (state > 0 and state < 4)
    -- What is kept for longer than it would be now has ended before the setting was lowered.
    told[#told + 1], told[#told + 2], told[#told + 3] = state, text or false, ends and ends <= most and ends or 0
  end

  local function message(id)
    local n = number_of(topic, id)
    local r = n and find(n)
    return r and r.topic == topic and r.id == id and r or nil
  end

  for i = rest, #ARGV do
    local r = message(ARGV[i])
    local result, ends = results.of(topic, ARGV[i])
    if r and r.state == STATE.waiting then
      tell(r.due <= now and 1 or 2)
    elseif r then
      tell(r.state == STATE.leased and 3 or 4, r.state == STATE.dead and r.error)
    elseif result then
      tell(5, result, ends)
      size = size + #result
    else
      ends = not is_made(ARGV[i]) and remembered_until(call('HGET', KEY.ids .. topic, ARGV[i]) or nil)
      if not ends or ends <= now then ends = nil end
      tell(ends and 5 or 0, false, ends)
    end
    if size > 2^20 then break end
  end
  if is_open and tonumber(watch_ms) > 0 then watch(topic, watch_ms) end
  return {told, finish()}
end))
end
