-- Delete messages that are done. The list: groups of receipts: first number of a block in 7 bytes, take in 4, slots in
-- 1 each. Answers {a byte for each receipt: acked or stale; finish()}, for the first groups only when lanes or large
-- messages make the call long: the caller sends the others again.
--
-- `done` does so with results to keep: the number of receipts in 4 bytes, for each of them in 4 bytes 0, or 1 and the
-- size of its result, and the results. It is refused when the memory is full, which ack is not.
do
local function ack(results_of)
  settle()
  local ids, cost = {}, 0
  -- The results to keep by topic, id and result alternating; the number of receipts before the present group.
  local own, before = {}, 0

  local function keep(topic, id, at)
    local result = results_of and results_of[before + at]
    if not result then return end
    local of = own[topic]
    if not of then of = {}; own[topic] = of end
    of[#of + 1], of[#of + 2] = id, result
  end

  local function forget_id(topic, id)
    if is_made(id) then return end
    local names = ids[topic]
    if not names then names = {}; ids[topic] = names end
    names[#names + 1] = id
  end

  -- Ack the rest of a block, as a whole; `marks` has the places of the slots in the group.
  local function ack_whole(n, b, marks)
    local text = names_at(n, b)
    if results_of then
      local names = ids_of(text, b, n)
      for slot, at in pairs(marks) do keep(b.topic, names[slot + 1], at) end
    end
    count(b.topic, 'leased', -b.live)
    if b.own_ids then
      local names, all, index = ids_of(text, b, n), ids[b.topic] or {}, index_of(text, b)
      for slot = 0, b.size - 1 do
        if index[3 * slot + 1] == 0 then all[#all + 1] = names[slot + 1] end
      end
      ids[b.topic] = all
    end
    note_block(KIND.ack, n, b, b.attempt, text)
    lift_block(n, b)
    drop_block(n)
  end

  -- Return by slot which receipts are for messages still in the block, and whether these are all of it, in order.
  local function marks_of(n, b, slots)
    local marks, index, number, last, in_order = {}, index_at(n, b), 0, -1, true
    for i = 1, #slots do
      local slot = slots:byte(i)
      if slot < b.size and not marks[slot] and index[3 * slot + 1] == 0 then
        marks[slot] = i
        number, last, in_order = number + 1, slot, in_order and slot > last
      end
    end
    return marks, in_order and number == b.live
  end

  -- Ack a part of a block.
  local function ack_part(n, b, slots, marks)
    local text, number = names_at(n, b), 0
    local names, index = ids_of(text, b, n), index_of(text, b)
    for i = 1, #slots do
      local slot = slots:byte(i)
      if marks[slot] == i then
        number = number + 1
        if b.own_ids then forget_id(b.topic, names[slot + 1]) end
        keep(b.topic, names[slot + 1], i)
        note(KIND.ack, b.topic, names[slot + 1], index[3 * slot + 2], b.attempt)
        set_gone(n, b, slot)
      end
    end
    count(b.topic, 'leased', -number)
    set_live(n, b.live - number)
    if b.live == number then
      lift_block(n, b)
      drop_block(n)
    end
  end

  local function ack_loose(n, take, slots, marks)
    local names, done, places, results, seen, messages = {}, {}, {}, {}, {}, {}
    for i = 1, #slots do names[i] = member(n + slots:byte(i)) end
    local texts = look_up('HMGET', KEY.messages, names)
    for i = 1, #slots do messages[i] = texts[i] and decode(texts[i], true) or nil end
    -- All of them came in one put.
    local _, any = next(messages)
    if any then learn_fronts_of(messages, any) end
    for i = 1, #slots do
      local r = not seen[names[i]] and messages[i]
      if marks[slots:byte(i)] == i then
        results[i] = RESULT.acked
      elseif r and r.state == STATE.leased and r.take == take and r.ends > now then
        seen[names[i]] = true
        done[#done + 1] = names[i]
        if slots:byte(i) > 0 or call('EXISTS', block_key(n)) == 0 then places[#places + 1] = n + slots:byte(i) end
        results[i] = RESULT.acked
        count(r.topic, 'leased', -1)
        ended[n + slots:byte(i)] = true
        local key = ordered_key(r)
        cost = cost + #texts[i] / BYTES_AS_ONE + (key and math.max(leave_line(r.topic, key, n + slots:byte(i)), 1) or 0.1)
        note(KIND.ack, r.topic, r.id, r.due, r.attempt)
        if r.owner ~= '' then call('SREM', KEY.owner .. r.owner, names[i]) end
        forget_id(r.topic, r.id)
        keep(r.topic, r.id, i)
      else
        results[i] = RESULT.stale
      end
    end
    if #done > 0 then
      call('HDEL', KEY.messages, unpack(done))
      call('ZREM', KEY.leased, unpack(done))
      leave(places)
    end
    return table.concat(results)
  end

  local told = {}
  for i = rest, #ARGV do
    local n, take = unpack_from('>I7I4', ARGV[i])
    local slots, marks = ARGV[i]:sub(12), {}
    local b = held_block(n, take)
    local is_alone = b and is_whole(n, b, slots)
    local all, keys, names = is_alone, nil, nil
    if b and settings(b.topic).ordered then keys, names = keys_at(n, b) end
    -- Messages taken out of the block may be acked with it.
    if b and (results_of or not is_alone) then marks, all = marks_of(n, b, slots) end
    if all then ack_whole(n, b, marks) elseif b then ack_part(n, b, slots, marks) end
    told[#told + 1] = is_alone and string.rep(RESULT.acked, b.live) or ack_loose(n, take, slots, marks)
    before = before + #slots
    if keys then
      cost = cost + leave_fronts(n, b, not all and marks, keys, names)
    end
    if cost >= LIMITS.loose then break end
  end

  local parts = 0
  for topic, names in pairs(ids) do parts = parts + remember(topic, names) end
  for topic, kept_ones in pairs(own) do parts = parts + results.keep(topic, kept_ones) end
  -- As many ids are dropped as are remembered, or the number to drop would only grow.
  if parts > 1 then forget_some(parts) end
  return {table.concat(told), finish()}
end

verb('ack', 0, kept(function() return ack() end))
-- Return the results in the argument of `done`, by the places of their receipts.
function results.given(given)
  local size, found = unpack_from('>I4', given), {}
  local start = 5 + 4 * size
  for at = 1, size do
    local length = unpack_from('>I4', given, 4 * at + 1)
    if length > 0 then found[at] = given:sub(start, start + length - 2); start = start + length - 1 end
  end
  return found
end

verb('done', 1, kept(function(given) return ack(results.given(given)) end))

-- Put the message of a block as a loose one, if its id does not exist; return nil, or what is pending and the limit of a
-- topic that is full, or 'own' if its id is that of the message `held`, which is about to be acked.
function results.put_after(text, counted_ms, counted, held)
  local expires = 0
  if text:byte(1) == 0 then
    expires = unpack_from('>I6', text, 3)
    text = text:sub(9)
  end
  local b = head_of(text)
  b.state = STATE.waiting
  local topic, of = b.topic, settings(b.topic)
  local id = b.own_ids and ids_of(text, b, 0)[1]
  if id and topic == held.topic and id == held.id then return 'own' end
  local value = id and call('HGET', KEY.ids .. topic, id)
  local ends = remembered_until(value)
  if value and not (ends and ends <= now) then return nil end
  if of.max_pending > 0 then
    local limit = math.ceil(of.max_pending / SHARDS)
    local pending, changed = call('HMGET', KEY.counts .. topic, 'delayed', 'ready'), counts[topic] or {}
    local waiting = (pending[1] or 0) + (pending[2] or 0) + (changed.delayed or 0) + (changed.ready or 0)
    if waiting >= limit then return waiting, limit end
  end
  local n = call('HINCRBY', KEY.meta, 'block', 1) * 64
  local r = unpacked(text, b, n)[0]
  local later = counted_ms > 0 and now - counted_ms or 0
  r.due = r.due + (counted % 2 == 1 and later or 0)
  r.expires = expires > 0 and expires + (counted >= 2 and later or 0) or 0
  if id then
    call('HSET', KEY.ids .. topic, id, pack('>I6', n))
    call('HDEL', KEY.results .. topic, id)
  end
  learn_priority(topic, r.priority)
  enter({n})
  note(KIND.put, topic, r.id, r.due, 0)
  wait(n, r)
  save(n, r)
  return nil
end

-- Ack one message as `done` does, and put another in the same step if it was leased: `text` is that as a block, as put
-- gets it, `counted_ms` the base time for delays, 0 without, `counted` 1 if its due was counted from that, and 2 its
-- expiry. The list: the receipt. Answers as ack does, or with nothing done {'full', pending, limit, finish()}, or
-- {'own', finish()} if it has topic and id of the message that is acked.
verb('follow', 4, kept(function(given, text, counted_ms, counted)
  settle()
  local n, take = unpack_from('>I7I4', ARGV[rest])
  local held = held_by(n + ARGV[rest]:byte(12), take)
  if held then
    local pending, limit = results.put_after(text, tonumber(counted_ms), tonumber(counted), held)
    if pending == 'own' then return {'own', finish()} end
    if pending then return {'full', pending, limit, finish()} end
  end
  return ack(results.given(given))
end))
end
