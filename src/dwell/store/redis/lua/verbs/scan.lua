-- Name messages of one state, some of them a call; the caller merges the names. `state` is 'delayed', 'ready', 'leased'
-- or 'dead'; the scan begins after a due and n, and ends before another; `limit` are wanted; `where` is where to
-- continue, '' at first. Answers {pairs of due and n; where to continue, '' at the end; finish()}, or {'again',
-- finish()}.
verb('scan', 8, looking(function(topic, state, after_due, after_n, end_due, end_n, limit, where)
  if state == 'ready' and not is_formed(topic) then return {'again', finish()} end
  limit, after_due, after_n = tonumber(limit), tonumber(after_due), tonumber(after_n)
  end_due, end_n = tonumber(end_due), tonumber(end_n)
  -- Reading a block costs as much as 25 loose messages.
  local entries, cost, MOST_COST = {}, 0, LIMITS.scanned

  local function is_before(due, n, other_due, other_n) return due < other_due or (due == other_due and n < other_n) end

  local function add(due, n)
    if is_before(after_due, after_n, due, n) and is_before(due, n, end_due, end_n) then
      entries[#entries + 1] = due
      entries[#entries + 1] = n
    end
  end

  local function add_block(n)
    local b = head_at(n)
    if b.topic ~= topic or b.last < after_due then return end
    -- A block whose messages all have the cursor's due and start more than a block before it also ends before it.
    if b.last == after_due and n < after_n - 63 then return end
    local index = index_at(n, b)
    for slot = 0, b.size - 1 do
      if index[3 * slot + 1] == 0 then add(index[3 * slot + 2], n + slot) end
    end
    cost = cost + 24
  end

  -- In the set of ready messages, n is behind the due. Members for a block are longer.
  local from = state == 'ready' and 7 or 1
  local loose_size = state == 'delayed' and 11 or from + 6
  local function due_and_n(entry, score)
    return state == 'ready' and (unpack_from('>I6', entry)) or tonumber(score), (unpack_from('>I7', entry, from))
  end

  -- Return the rank of the first entry that is not before a due and n, of entries in that order.
  local function rank_of(name, low, high, due, n)
    while low < high do
      local middle = floor((low + high) / 2)
      local found = call('ZRANGE', name, middle, middle, 'WITHSCORES')
      local its_due, its_n = due_and_n(found[1], found[2])
      if is_before(its_due, its_n, due, n) then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Walk entries of a set in order of due and n, with ranks from `low` to before `high`; return due and n to continue
  -- from, nil at the end. No block has dues further apart than `span`.
  local function walk(name, low, high, due, n, span)
    low = rank_of(name, low, high, due, n)
    local found = low < high and call('ZRANGE', name, low, math.min(low + MOST_COST, high - 1), 'WITHSCORES') or {}
    for i = 1, #found, 2 do
      due, n = due_and_n(found[i], found[i + 1])
      if not is_before(due, n, end_due, end_n) then return nil end
      -- If no block has several dues, no entry of the cursor's due before this one reaches behind it.
      if span == 0 and due == after_due and n < after_n - 63 then return due, after_n - 63 end
      if cost >= MOST_COST or #entries >= 2 * limit then return due, n end
      if #found[i] > loose_size then add_block(n) else add(due, n) end
      cost = cost + 1
    end
  end

  local function walk_all(name)
    local due, n = where:match('^(%d+) (%d+)$')
    -- Messages after the cursor can be in blocks that start before it.
    local span = tonumber(call('HGET', KEY.counts .. topic, 'span') or 0)
    due, n = walk(name, 0, call('ZCARD', name), tonumber(due) or after_due - span, tonumber(n) or 0, span)
    return due and string.format('%.0f %.0f', due, n) or ''
  end

  -- Walk turns, starting with `turn`; a turn has no inner order; return where to continue, nil at the end.
  local function walk_turns(name, turn, due, n)
    local low = call('ZCOUNT', name, '-inf', '(' .. turn)
    low = rank_of(name, low, call('ZCOUNT', name, '-inf', turn), due, n)
    local found = call('ZRANGE', name, low, low + MOST_COST, 'WITHSCORES')
    for i = 1, #found, 2 do
      due, n = due_and_n(found[i])
      if tonumber(found[i + 1]) >= PARKED then return found[i + 1], due, n, i - 1 end
      if i > 2 * MOST_COST then return found[i + 1], due, n, MOST_COST end
      add(due, n)
    end
  end

  -- Walk the ready messages: they are in order within each priority, and in no order within turns.
  local function walk_priorities(name)
    local priority, due, n = where:match('^(%d+) (%d+) (%d+)$')
    priority = priority or call('ZRANGE', name, 0, 0, 'WITHSCORES')[2]
    while priority do
      if cost >= MOST_COST then return string.format('%s %.0f 0', priority, math.max(after_due, 0)) end
      if tonumber(priority) >= FIRST_TURN and tonumber(priority) < PARKED then
        local walked
        priority, due, n, walked = walk_turns(name, priority, tonumber(due) or 0, tonumber(n) or 0)
        if not priority then return '' end
        if walked == MOST_COST then return string.format('%s %.0f %.0f', priority, due, n) end
        cost, due, n = cost + walked, nil, nil
      end
      local low, high = call('ZCOUNT', name, '-inf', '(' .. priority), call('ZCOUNT', name, '-inf', priority)
      due, n = walk(name, low, high, tonumber(due) or after_due, tonumber(n) or 0, 0)
      if due then return string.format('%s %.0f %.0f', priority, due, n) end
      cost = cost + 25
      priority = call('ZRANGE', name, high, high, 'WITHSCORES')[2]
    end
    return ''
  end

  -- Read some of all leases, which are in an unrelated order; more of them, the less the last step cost.
  local function look()
    local cursor, number = where:match('^(%d+) (%d+)$')
    number = tonumber(number) or 32
    local found = call('ZSCAN', KEY.leased, cursor or '0', 'COUNT', number)
    for i = 1, #found[2], 2 do
      local entry = found[2][i]
      local n = unpack_from('>I7', entry)
      if #entry > loose_size then
        add_block(n)
      else
        local r = decode(call('HGET', KEY.messages, entry))
        if r.topic == topic then add(r.due, n) end
        cost = cost + 6
      end
    end
    if found[1] == '0' then return '' end
    number = math.max(math.min(number * MOST_COST / (cost + 1), number * 4, 1000), 8)
    return string.format('%s %.0f', found[1], number)
  end

  if state == 'leased' then
    where = look()
  elseif state == 'ready' then
    where = walk_priorities(KEY.ready .. topic)
  else
    where = walk_all(KEY[state] .. topic)
  end
  return {entries, where, finish()}
end))
