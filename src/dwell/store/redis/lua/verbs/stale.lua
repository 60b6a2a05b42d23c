-- Find stale entries of the shard, in some of one part a call: at most `limit`, which `repair` '1' repairs. `part` is
-- 'delayed', 'ready', 'dead' or 'expiring', which are sets of a topic, 'fronts' or 'ids' of a topic, 'leased', 'places'
-- or 'messages'; `cursor` is where to continue, '0' at first. Answers {topic, id, n, problem, ...; where to continue,
-- '0' at the end; topic, state, number, ... of the messages that were in their right places; finish()}.
verb('stale', 5, function(repair, limit, part, topic, cursor)
  repair, limit = repair == '1', tonumber(limit)
  local found, seen = {}, {}

  local function tell(of, id, n, problem, mend)
    if #found >= 4 * limit then return end
    if repair then mend() end
    for _, value in ipairs({of, id, n, problem}) do found[#found + 1] = value end
  end

  local function see(of, state, number)
    for _, value in ipairs({of, state, number}) do seen[#seen + 1] = value end
  end

  local function is_there(name, n)
    if #name == 8 or #name == 12 or #name == 14 then return call('EXISTS', block_key(n)) == 1 end
    return call('HEXISTS', KEY.messages, member(n)) == 1
  end

  -- Tell whether a front is a line whose first message exists.
  local function is_led(front)
    return line.is(front) and (is_there('', line.number(front)) or packed(line.number(front), true))
  end

  -- Tell whether the front of a key is led by an existing message.
  local function has_leader(key, text)
    if line.is_marks(text) then
      local b = head_at(unpack_from('>I7', text))
      return b and b.topic == topic
    end
    learn_fronts(topic, {key})
    return is_led(fronts[topic][key]) or (not line.is(fronts[topic][key]) and begun_of(topic, key) ~= '')
  end

  local function check_fronts()
    local some = call('HSCAN', KEY.fronts .. topic, cursor, 'COUNT', LIMITS.looked)
    for i = 1, settings(topic).forming and 0 or #some[2], 2 do
      local key = some[2][i]
      if not has_leader(key, some[2][i + 1]) then
        tell(topic, '', 0, 'no body', function()
          learn_fronts(topic, {key})
          if line.is(fronts[topic][key]) then cut_line(topic, key) end
          write_fronts(topic, key, '')
          mark_key(topic, key)
        end)
      end
    end
    return some[1]
  end

  -- The front of a key must have each message of it that is in progress.
  local function check_front(n, r)
    local key = not settings(r.topic).forming and ordered_key(r)
    if not key or not (r.state == STATE.leased or (r.state == STATE.waiting and r.attempt > 0)) then return end
    learn_fronts(r.topic, {key})
    local front = fronts[r.topic][key]
    if line.is(front) and line.number(front) == n then return end
    for at = 1, line.is(front) and 0 or #front, 7 do
      if unpack_from('>I7', front, at) == n then return end
    end
    tell(r.topic, r.id, n, 'no state', function() keep_front(n, r) end)
  end

  -- Do the same for a block, whose mark is in most fronts of its keys.
  local function check_front_of_block(n, b)
    if not settings(b.topic).ordered or b.attempt == 0 then return end
    local keys, names = keys_at(n, b)
    local texts, at = look_up('HMGET', KEY.fronts .. b.topic, names), 0
    for slot = 1, b.size do
      if keys[slot] then
        at = at + 1
        local text = texts[at] or ''
        if not (line.is_marks(text) and unpack_from('>I7', text) == n) then check_front(n + slot - 1, packed(n + slot - 1)) end
      end
    end
  end

  -- Tell whether something holds back the parked messages of a key's lane, and will release them.
  local function is_held(key, front)
    local first = call('ZRANGE', lane_key(topic, key), 0, 0)[1]
    local score = first and call('ZSCORE', KEY.ready .. topic, first)
    if score and tonumber(score) < PARKED then return true end
    if line.is(front) then return is_led(front) and line.has_others(front) end
    return begun_of(topic, key) ~= ''
  end

  -- Each ready message must be the first of its line, or else in its line or lane.
  local function is_first(key, entry)
    local front = key and fronts[topic][key] or ''
    return not key or (line.is(front) and line.first(front) == entry)
  end

  local function is_behind(key, entry)
    local front = key and fronts[topic][key] or ''
    if not key then return false end
    if is_led(front) and line.place(front, entry) then return true end
    return call('ZSCORE', lane_key(topic, key), entry) and is_held(key, front)
  end

  local function check_lines(n, score)
    local text = call('GET', block_key(n))
    local b = head_of(text)
    local keys, names = keys_in(text, b)
    learn_fronts(topic, names)
    for slot, key in pairs(keys) do
      local m = n + slot - 1
      local entry = ready_member(m, b.due)
      local is_there = (score < PARKED and is_first(key, entry)) or ((score >= PARKED or b.is_mixed) and is_behind(key, entry))
      if not is_there then
        return tell(topic, ids_of(text, b, n)[slot], m, 'no state', function()
          explode(n, text, b)
          if key then mark_key(topic, key) end
        end)
      end
    end
  end

  -- A ready message must be in its lane, and of the other entries of that lane the first must be ready, and not parked
  -- when no message of its key is in progress.
  local function check_lane(entry, n, score)
    local r = outline(call('HGET', KEY.messages, member(n)))
    local key = not settings(topic).forming and ordered_key(r)
    if not key then
      local is_parked = score >= PARKED and not settings(topic).forming
      return is_parked and tell(topic, r.id, n, 'no state', function() stand_ready(r, entry) end)
    end
    learn_fronts(topic, {key})
    local name, front = lane_key(topic, key), fronts[topic][key]
    local is_known = score >= PARKED and is_behind(key, entry) or score < PARKED and is_first(key, entry)
    if not is_known and not call('ZSCORE', name, entry) then
      tell(topic, r.id, n, 'no state', function()
        call('ZADD', name, r.priority, entry)
        mark(r)
      end)
    end
    local first = call('ZRANGE', name, 0, 0)[1]
    local its = first and call('ZSCORE', KEY.ready .. topic, first)
    if first and not its and packed(unpack_from('>I7', first, 7), true) then return end
    if first and not its then
      tell(topic, '', unpack_from('>I7', first, 7), 'no body', function()
        call('ZREM', name, first)
        mark(r)
      end)
    elseif first == entry and tonumber(its) >= PARKED and not is_held(key, front) then
      tell(topic, r.id, n, 'no state', function() mark(r) end)
    end
  end

  -- Check some members of a set, whose message or block may be gone.
  local function check_set(name, from)
    local some = call('ZSCAN', name, cursor, 'COUNT', LIMITS.looked)
    for i = 1, #some[2], 2 do
      local entry = some[2][i]
      local n = unpack_from('>I7', entry, from)
      if not is_there(entry, n) then
        tell(topic, '', n, 'no body', function() call('ZREM', name, entry) end)
      elseif call('SISMEMBER', KEY.dir .. floor(n / 512), n % 512) == 0 then
        tell(topic, '', n, 'no state', function() enter({n}) end)
      elseif part == 'ready' and #entry == 13 and (settings(topic).ordered or tonumber(some[2][i + 1]) >= PARKED) then
        check_lane(entry, n, tonumber(some[2][i + 1]))
      elseif part == 'ready' and #entry == 14 and may_be_lined(topic) then
        check_lines(n, tonumber(some[2][i + 1]))
      end
    end
    return some[1]
  end

  -- Return where the set of its state has a message; nil if it is in none.
  local function place_of(r, n, ending)
    if call('ZSCORE', KEY.delayed .. r.topic, delayed_member(n, r.priority) .. ending) then return 'delayed' end
    if call('ZSCORE', KEY.ready .. r.topic, ready_member(n, r.due) .. ending) then return 'ready' end
    if call('ZSCORE', KEY.leased, member(n) .. ending) then return 'leased' end
    return ending == '' and call('ZSCORE', KEY.dead .. r.topic, member(n)) and 'dead' or nil
  end

  -- Put a message or a block into the sets of its state.
  local function place(r, n, ending)
    if r.state == STATE.leased then
      call('ZADD', KEY.leased, r.ends, member(n) .. ending)
    elseif r.state == STATE.dead then
      call('ZADD', KEY.dead .. r.topic, r.due, member(n))
    elseif r.due > now or (r.last and r.last > r.due) then
      call('ZADD', KEY.delayed .. r.topic, r.due, delayed_member(n, r.priority) .. ending)
    else
      local entry = ready_member(n, r.due)
      call('ZADD', KEY.ready .. r.topic, ending == '' and enter_ready(r, entry) or r.priority, entry .. ending)
      wake(r.topic, r.live or 1)
    end
    touched[r.topic] = true
  end

  -- Add the id of a message to the index again. If another message has the id by now, this one gets a queue-made id, so
  -- that both can be reached.
  local function index_again(r, n, value)
    local other = value and not remembered_until(value) and unpack_from('>I6', value) or nil
    local text = other and read(other)
    local its = text and decode(text)
    if its and its.topic == r.topic and its.id == r.id then
      r = hold(n, r)
      r.id = made_id(n)
      return save(n, r)
    end
    local ends = remembered_until(value)
    if ends then call('HSET', KEY.earlier .. r.topic, r.id, string.format('%.0f', ends)) end
    call('HSET', KEY.ids .. r.topic, r.id, pack('>I6', n))
  end

  local function check_id(r, n, value)
    if value == pack('>I6', n) then return end
    tell(r.topic, r.id, n, 'no state', function() index_again(r, n, value) end)
  end

  -- The ids of a block's live messages must be in the index.
  local function check_names(n, b)
    if not b.own_ids then return end
    local names, index = ids_of(names_at(n, b), b, n), index_at(n, b)
    local values = look_up('HMGET', KEY.ids .. b.topic, names)
    for slot = 0, b.size - 1 do
      if index[3 * slot + 1] == 0 and names[slot + 1] ~= '' and not is_made(names[slot + 1]) then
        check_id({topic = b.topic, id = names[slot + 1], is_packed = true}, n + slot, values[slot + 1])
      end
    end
  end

  local function check_block(n, b)
    check_names(n, b)
    b = head_at(n)
    if not b then return end
    check_front_of_block(n, b)
    local state = place_of(b, n, 'b')
    if state then return see(b.topic, state, b.live) end
    tell(b.topic, ids_of(names_at(n, b), b, n)[1], n, 'no state', function() place(b, n, 'b') end)
  end

  local function check_places()
    local dir = call('ZRANGEBYSCORE', KEY.dirs, cursor, '+inf', 'LIMIT', 0, 1)[1]
    if not dir then return '0' end
    for _, place in ipairs(call('SMEMBERS', KEY.dir .. dir)) do
      local n = dir * 512 + tonumber(place)
      local b = n % 64 == 0 and head_at(n)
      if b then
        check_block(n, b)
      elseif call('HEXISTS', KEY.messages, member(n)) == 0 then
        tell('', '', n, 'no body', function() leave({n}) end)
      end
    end
    return string.format('%.0f', dir + 1)
  end

  local function check_message(n, r)
    if not is_made(r.id) then check_id(r, n, call('HGET', KEY.ids .. r.topic, r.id)) end
    check_front(n, r)
    local state = place_of(r, n, '')
    if state then return see(r.topic, state, 1) end
    tell(r.topic, r.id, n, 'no state', function()
      place(r, n, '')
      enter({n})
    end)
  end

  local function check_messages()
    local some = call('HSCAN', KEY.messages, cursor, 'COUNT', math.ceil(LIMITS.looked / 2))
    for i = 1, #some[2], 2 do check_message(unpack_from('>I7', some[2][i]), decode(some[2][i + 1])) end
    return some[1]
  end

  local function check_ids()
    local some = call('HSCAN', KEY.ids .. topic, cursor, 'COUNT', math.ceil(LIMITS.looked / 2))
    for i = 1, #some[2], 2 do
      local id, value = some[2][i], some[2][i + 1]
      local n = id ~= '' and not remembered_until(value) and unpack_from('>I6', value) or nil
      local text = n and read(n)
      local r = text and decode(text)
      if n and (not r or r.id ~= id or r.topic ~= topic) then
        tell(topic, id, n, 'no message', function() call('HDEL', KEY.ids .. topic, id) end)
      end
    end
    return some[1]
  end

  if part == 'places' then
    cursor = check_places()
  elseif part == 'messages' then
    cursor = check_messages()
  elseif part == 'ids' then
    cursor = check_ids()
  elseif part == 'fronts' then
    cursor = check_fronts()
  else
    cursor = check_set(part == 'leased' and KEY.leased or KEY[part] .. topic, part == 'ready' and 7 or 1)
    if topic ~= '' then touched[topic] = true end
  end
  return {found, cursor, seen, finish()}
end)
