-- Add messages to one topic. `on_conflict` is 'keep', 'replace' or 'error'; `whose` is '0' if the queue made the ids,
-- '1' if they are the caller's and may exist, '2' if an id is repeated; `is_sorted` is '1' if the messages were sorted;
-- `counted_ms` is the base time for delays, 0 without delays; `least` is how many messages are worth a block;
-- `versions` are the versions that messages must have to be replaced, in the order of the blocks, 8 bytes each, 0 for
-- any; or ''. The list: blocks, as in blocks.lua, each of messages with the same priority, lease and attempts; a block
-- with expiries has them in front, 6 bytes each. Of a large block only the names are given, with 2 as state: its whole
-- text is in the key `new:<instance>:<call>:<its place>`, which expires if this call never comes. Answers {'ok', number
-- of the first block, a byte for each result, ...}, or {'exists', id}, or {'full', pending, limit, new}, or
-- {'unsorted'} when the order decides which messages are dropped, or {'split', size} when one call would take too long,
-- and has done nothing: the caller sends at most `size` messages at a time, or {'stepped'} when delays were counted
-- from another time than this one. The values of finish() follow. Only the first blocks have results when lines make
-- the call long: the caller sends the others again.
verb('put', 7, function(topic, on_conflict, whose, is_sorted, counted_ms, least, versions)
  local said = answered()
  if said then return said end
  counted_ms, least = tonumber(counted_ms), tonumber(least)
  local own = whose ~= '0'
  local function new_key(i) return KEY.new .. INSTANCE .. ':' .. SERIAL .. ':' .. i end
  local IDS = KEY.ids .. topic
  local of = settings(topic)

  -- An all-or-nothing put is done in one call, however long it takes.
  local is_whole = on_conflict == 'error' or (of.max_pending > 0 and of.on_full == 'refuse')
  local MOST_LOOSE = LIMITS.loose
  local function is_too_many(number) return number > MOST_LOOSE and not is_whole end

  local blocks, ids, total, loose, elsewhere = {}, {}, 0, 0, {}
  for i = rest, #ARGV do
    local text, expiries = ARGV[i], nil
    if text:byte(1) == 0 then
      local size = text:byte(2)
      expiries = {unpack_from('>' .. string.rep('I6', size), text, 3)}
      text = text:sub(3 + 6 * size)
    end
    local b = head_of(text)
    local is_elsewhere = text:byte(1) == 2
    b.state = STATE.waiting
    local block = {text = text, head = b, expiries = expiries}
    blocks[#blocks + 1] = block
    if is_elsewhere then
      block.key = new_key(#blocks)
      elsewhere[#elsewhere + 1] = block.key
    end
    if expiries or b.size < least or (is_laned(topic) and not may_be_lined(topic)) then
      loose = loose + b.size
    end
    total = total + b.size
  end

  local function let_go()
    for i = 1, #elsewhere do call('UNLINK', elsewhere[i]) end
  end

  if counted_ms > 0 and math.abs(now - counted_ms) > LIMITS.step_ms then
    let_go()
    return {'stepped', finish()}
  end
  if is_too_many(loose) then
    let_go()
    return {'split', floor(MOST_LOOSE * total / loose), finish()}
  end
  for i = 1, own and #blocks or 0 do
    local names, before = ids_of(blocks[i].text, blocks[i].head, 0), #ids
    for at = 1, #names do ids[before + at] = names[at] end
  end

  if #elsewhere > 0 and call('EXISTS', unpack(elsewhere)) < #elsewhere then
    return redis.error_reply('TRYAGAIN the messages have not come whole')
  end
  settle()

  -- The existing ids, and the remembered ids.
  local there, earlier, is_clean = {}, {}, whose ~= '2' and versions == ''
  local has_results = own and call('EXISTS', KEY.results .. topic) == 1
  if own then
    local found = look_up('HMGET', IDS, ids)
    for i = 1, total do
      if found[i] then
        local ends = remembered_until(found[i])
        if not ends then
          there[ids[i]] = unpack_from('>I6', found[i])
          is_clean = false
        elseif ends > now and on_conflict == 'keep' then
          there[ids[i]] = -1
          is_clean = false
        elseif ends > now then
          earlier[ids[i]] = ends
          is_clean = false
        end
      end
    end
    if on_conflict == 'error' then
      local seen = {}
      for i = 1, total do
        if there[ids[i]] or seen[ids[i]] then
          let_go()
          return answer({'exists', ids[i], finish()})
        end
        seen[ids[i]] = true
      end
    end
  end

  local room = total
  if of.max_pending > 0 then
    local limit = math.ceil(of.max_pending / SHARDS)
    local pending = call('HMGET', KEY.counts .. topic, 'delayed', 'ready')
    local waiting = (pending[1] or 0) + (pending[2] or 0)
    local changed = counts[topic] or {}
    waiting = waiting + (changed.delayed or 0) + (changed.ready or 0)
    room = math.max(limit - waiting, 0)
    if of.on_full == 'refuse' then
      local new, seen = total, {}
      for i = 1, #ids do
        if there[ids[i]] or seen[ids[i]] then new = new - 1 end
        seen[ids[i]] = true
      end
      if new > room then
        let_go()
        return answer({'full', waiting, limit, new, finish()})
      end
    end
  end
  if total > room then
    is_clean = false
    if is_sorted == '1' then
      let_go()
      return {'unsorted', finish()}
    end
  end

  local replaced = 0
  if on_conflict == 'replace' then
    for _ in pairs(there) do replaced = replaced + 1 end
  end
  local most = replaced > 64 and total > 64 and 64 or not is_clean and is_too_many(total) and MOST_LOOSE
  if most then
    let_go()
    return {'split', most, finish()}
  end

  local first = call('HINCRBY', KEY.meta, 'block', #blocks) - #blocks + 1
  local results, fresh = {}, {}

  local function put_one(n, r, place)
    local old = there[r.id]
    local of_any = versions == '' or unpack_from('>I4', versions, 8 * place + 1) + unpack_from('>I4', versions, 8 * place + 5) == 0
    if not old and not of_any then return RESULT.unknown end
    if old and (old < 0 or on_conflict ~= 'replace') then return RESULT.kept end
    if old then
      -- A message put by this very call is as it was put, even if it has expired.
      local was = fresh[old] and decode(call('HGET', KEY.messages, member(old))) or find(old)
      if was.state == STATE.leased then return RESULT.leased end
      if not of_any and is_changed(old, was, versions, place) then return RESULT.unknown end
      was = lifted(old, was)
      -- Another take, so that a change of its values shows as another version.
      r.take = lives.next_take(was.take)
      n = old
    elseif room <= 0 then
      return RESULT.dropped
    else
      room = room - 1
      if own then
        call('HSET', IDS, r.id, pack('>I6', n))
        if earlier[r.id] then call('HSET', KEY.earlier .. topic, r.id, earlier[r.id]) end
        if has_results then call('HDEL', KEY.results .. topic, r.id) end
        there[r.id] = n
      end
      enter({n})
    end
    fresh[n] = true
    note(old and KIND.replace or KIND.put, topic, r.id, r.due, 0)
    wait(n, r)
    save(n, r)
    return old and RESULT.replaced or RESULT.created
  end

  local fields, places, messages, ready, delayed, expiring = {}, {}, {}, {}, {}, {}

  -- Keep a new message as a loose one; data that belong to one key are written together at the end.
  local function put_loose(n, r)
    places[#places + 1] = n
    messages[#messages + 1] = member(n)
    messages[#messages + 1] = encode(r)
    if own then
      fields[#fields + 1] = r.id
      fields[#fields + 1] = pack('>I6', n)
    end
    if r.due <= now then
      local entry = ready_member(n, r.due)
      ready[#ready + 1] = enter_ready(r, entry)
      ready[#ready + 1] = entry
      if r.expires == 0 or r.expires > now then wake(topic, 1) end
    else
      delayed[#delayed + 1] = r.due
      delayed[#delayed + 1] = delayed_member(n, r.priority)
    end
    if r.expires > 0 then
      expiring[#expiring + 1] = r.expires
      expiring[#expiring + 1] = member(n)
    end
    note(KIND.put, topic, r.id, r.due, 0)
    return RESULT.created
  end

  local function end_loose()
    if #places == 0 then return end
    enter(places)
    many('HSET', KEY.messages, messages)
    many('ZADD', KEY.ready .. topic, ready)
    many('ZADD', KEY.delayed .. topic, delayed)
    many('ZADD', KEY.expiring .. topic, expiring)
    count(topic, 'ready', #ready / 2)
    count(topic, 'delayed', #delayed / 2)
    places, messages, ready, delayed, expiring = {}, {}, {}, {}, {}
  end

  -- Keep a block as it is: all its messages are new, and none of them needs a plan of its own. Return the cost, in
  -- units of one loose message.
  local function put_block(n, block)
    local b = block.head
    if block.key then
      call('RENAME', block.key, block_key(n))
      call('PERSIST', block_key(n))
    else
      -- Keys behind the bodies are used only in an ordered topic.
      local last = may_be_lined(topic) and #block.text or bodies_end(block.text, b)
      call('SET', block_key(n), #block.text > last and block.text:sub(1, last) or block.text)
    end
    note_block(KIND.put, n, b, 0, block.text)
    enter({n})
    local ready, delayed = block_entry(n, b)
    if b.last <= now then
      count(topic, 'ready', b.size)
      if is_laned(topic) then
        -- The block meets the messages that this call has put before it.
        end_loose()
        return line_up_block(n, block.key and call('GET', block_key(n)) or block.text, b)
      end
      call('ZADD', KEY.ready .. topic, b.priority, ready)
      wake(topic, b.size)
    else
      call('ZADD', KEY.delayed .. topic, b.due, delayed)
      count(topic, 'delayed', b.size)
      if b.last - b.due > tonumber(call('HGET', KEY.counts .. topic, 'span') or 0) then
        call('HSET', KEY.counts .. topic, 'span', b.last - b.due)
      end
    end
    return 0
  end

  local at, cost = 0, 0
  for i = 1, #blocks do
    local block = blocks[i]
    if is_too_many(cost) then
      let_go()
      break
    end
    local b, n = block.head, (first + i - 1) * 64
    learn_priority(topic, b.priority)
    local is_dense = is_clean and b.size >= least and not block.expiries and (b.due == b.last or b.due > now)
    if is_dense and (not is_laned(topic) or is_lined(b) or (may_be_lined(topic) and b.due > now)) then
      cost = cost + put_block(n, block)
      if own then
        local members, before = numbers_of(n, b.size), #fields
        for i = 1, b.size do
          fields[before + 2 * i - 1] = ids[at + i]
          fields[before + 2 * i] = members[i]
        end
      end
      results[#results + 1] = string.rep(RESULT.created, b.size)
    else
      local found = unpacked(block.key and call('GET', block.key) or block.text, b, n)
      if block.key then call('DEL', block.key) end
      for slot = 0, b.size - 1 do
        local r = found[slot]
        if block.expiries then r.expires = block.expiries[slot + 1] end
        results[#results + 1] = (is_clean and put_loose or put_one)(n + slot, r, at + slot)
      end
    end
    at = at + b.size
  end
  end_loose()
  -- A small hash is a list that is searched from its start; one long value makes it a table.
  if #fields > 128 then call('HSETNX', IDS, '', string.rep(' ', 65)) end
  many('HSET', IDS, fields)
  return answer({'ok', first, table.concat(results), finish()})
end)
