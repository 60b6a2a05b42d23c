-- Apply the passing of time. The list: topics with waiting takers. Answers {whether all is done, pairs of such a topic
-- and its number of ready messages, 1 if settings may differ from other shards, finish()}.
verb('tick', 0, function()
  local is_settled = settle()
  local done = finish()

  local function are_equal(values, others)
    if type(values) ~= 'table' or type(others) ~= 'table' then return values == others end
    for name, value in pairs(values) do
      if not are_equal(value, others[name]) then return false end
    end
    return #values == #others
  end

  local function has_nothing(topic)
    local names = {KEY.delayed .. topic, KEY.ready .. topic, KEY.dead .. topic, KEY.expiring .. topic, KEY.earlier .. topic, KEY.results .. topic}
    -- Settings that were reset to the defaults stay, for shards that are behind.
    if call('EXISTS', unpack(names)) > 0 or not are_equal(settings(topic), DEFAULTS) then return false end
    -- The single field with an empty name is not an id.
    return call('HLEN', KEY.ids .. topic) == call('HEXISTS', KEY.ids .. topic, '')
  end

  -- Check one topic: `idle` is since when it has been empty, as far as was checked.
  local function forget_topic(topic)
    local of = call('HMGET', KEY.counts .. topic, 'delayed', 'ready', 'leased', 'dead', 'idle')
    local since = tonumber(of[5] or nil)
    for i = 1, 4 do
      if of[i] and of[i] ~= '0' then
        return since and call('HDEL', KEY.counts .. topic, 'idle')
      end
    end
    if not has_nothing(topic) then return end
    if not since or since > now then
      call('HSET', KEY.counts .. topic, 'idle', now)
    elseif now - since >= LIMITS.idle_ms then
      call('DEL', KEY.counts .. topic, KEY.ids .. topic, KEY.turns .. topic, KEY.standing .. topic, KEY.fronts .. topic)
      call('HDEL', KEY.known, topic)
    end
  end

  -- Once a second, drop some of the topics that are empty and have no settings: a topic for each user adds up to a
  -- million of them in time.
  local function forget_topics()
    local at = call('HMGET', KEY.meta, 'swept', 'swept_ms')
    local last = tonumber(at[2] or 0)
    if last <= now and now - last < LIMITS.sweep_ms then return end
    -- Nothing else drops memories, and results with them, while nobody calls.
    forget_some(500, 500)
    local found = call('HSCAN', KEY.known, at[1] or '0', 'COUNT', LIMITS.topics)
    call('HSET', KEY.meta, 'swept', found[1], 'swept_ms', now)
    for i = 1, #found[2], 2 do forget_topic(found[2][i]) end
  end
  forget_topics()
  local ready = {}
  for i = rest, #ARGV do
    local topic = ARGV[i]
    local number = tonumber(call('HGET', KEY.counts .. topic, 'ready') or 0)
    if number > 0 and not settings(topic).paused then
      number = math.min(standing(topic, number), allowed(topic))
      if number > 0 then
        ready[#ready + 1] = topic
        ready[#ready + 1] = number
      end
    end
  end
  return {is_settled and 1 or 0, ready, call('EXISTS', KEY.unsettled), done}
end)
