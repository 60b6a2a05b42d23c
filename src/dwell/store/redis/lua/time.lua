-- Time: its effects on messages, as many of them as one call may apply.
local forget_some, settle
do
-- Make due messages ready: whole blocks whose messages are due together, else message by message.
local function promote(topic, budget)
  local name = KEY.delayed .. topic
  local found = call('ZRANGEBYSCORE', name, '-inf', now, 'WITHSCORES', 'LIMIT', 0, math.ceil(budget * 4))
  local ready, gone, number = {}, {}, 0
  for i = 1, #found, 2 do
    local entry, due = found[i], tonumber(found[i + 1])
    local n, priority = unpack_from('>I7I4', entry)
    if #entry == 12 then
      local b = head_at(n)
      if is_lined(b) then
        call('ZREM', name, entry)
        count(topic, 'delayed', -b.live)
        count(topic, 'ready', b.live)
        budget = budget - 1 - line_up_block(n, call('GET', block_key(n)), b)
      elseif b.due < b.last or is_laned(topic) then
        explode(n, call('GET', block_key(n)), b)
        budget = budget - 44
      else
        ready[#ready + 1] = priority
        ready[#ready + 1] = ready_member(n, due) .. 'b'
        gone[#gone + 1] = entry
        number = number + b.live
        budget = budget - 2
      end
    else
      local member_of = pack('>I6', due) .. entry:sub(1, 7)
      local text = is_laned(topic) and call('HGET', KEY.messages, entry:sub(1, 7))
      ready[#ready + 1] = text and enter_ready(outline(text), member_of) or priority
      if text then budget = budget - #text / BYTES_AS_ONE end
      ready[#ready + 1] = member_of
      gone[#gone + 1] = entry
      number = number + 1
      budget = budget - 0.4
    end
    if budget <= 0 then break end
  end
  if #gone > 0 then
    many('ZREM', name, gone)
    many('ZADD', KEY.ready .. topic, ready)
    count(topic, 'delayed', -number)
    count(topic, 'ready', number)
    wake(topic, number)
  end
  touched[topic] = true
  return budget
end

local function forget_results(topic, names)
  local found, old = call('HMGET', KEY.results .. topic, unpack(names)), {}
  for i = 1, #names do
    if found[i] and unpack_from('>I6', found[i]) <= now then old[#old + 1] = names[i] end
  end
  if #old > 0 then call('HDEL', KEY.results .. topic, unpack(old)) end
end

-- Drop some of the acked ids whose time is over, with their results: `number` entries, or fewer that have `most` ids.
function forget_some(number, most)
  local seen = 0
  for _, text in ipairs(call('ZRANGEBYSCORE', KEY.forgets, '-inf', now, 'LIMIT', 0, number)) do
    local names = cmsgpack.unpack(text)
    local topic = table.remove(names)
    local name = KEY.ids .. topic
    local found, old = call('HMGET', name, unpack(names)), {}
    for i = 1, #names do
      local ends = remembered_until(found[i])
      if ends and ends <= now then old[#old + 1] = names[i] end
    end
    if #old > 0 then call('HDEL', name, unpack(old)) end
    if call('EXISTS', KEY.results .. topic) == 1 then forget_results(topic, names) end
    call('ZREM', KEY.forgets, text)
    seen = seen + #names
    if most and seen >= most then return end
  end
end

-- Make a ready message or block wait again; in an ordered topic a block becomes loose first. Return the cost.
local function demote(topic, entry, priority)
  local due, n = unpack_from('>I6I7', entry)
  local number, ending = 1, ''
  if #entry == 14 and settings(topic).ordered then
    -- They are in several places now, some of which a walk has passed.
    for _, m in ipairs(explode(n, call('GET', block_key(n)), head_at(n))) do
      local own = ready_member(m, outline(call('HGET', KEY.messages, member(m))).due)
      demote(topic, own, tonumber(call('ZSCORE', KEY.ready .. topic, own)))
    end
    return 128
  elseif #entry == 14 then
    number, ending = head_at(n).live, 'b'
  elseif is_laned(topic) or priority >= FIRST_TURN then
    local r = outline(call('HGET', KEY.messages, member(n)))
    leave_ready(r, entry)
    give_back(r, priority)
    priority = r.priority
    mark(r)
    if settings(topic).forming then keep_front(n, r) end
  end
  call('ZREM', KEY.ready .. topic, entry)
  call('ZADD', KEY.delayed .. topic, due, delayed_member(n, priority) .. ending)
  count(topic, 'ready', -number)
  count(topic, 'delayed', number)
  return 1
end

-- Do as turn_topic for a fair topic, which has few messages of each turn: read many together.
local function turn_fair(topic, bound, budget)
  local name = KEY.ready .. topic
  local rank = call('ZCOUNT', name, '-inf', bound) - 1
  while rank >= 0 do
    if budget <= 0 then return bound, budget end
    local found = call('ZRANGE', name, math.max(rank - 127, 0), rank, 'WITHSCORES')
    local is_early = false
    for i = #found - 1, 1, -2 do
      is_early = unpack_from('>I6', found[i]) > now
      if is_early then
        budget = budget - demote(topic, found[i], tonumber(found[i + 1]))
      end
    end
    -- If an entry of a turn is not too early, the entries before it are not, either.
    bound = (is_early and '' or '(') .. found[2]
    rank = call('ZCOUNT', name, '-inf', bound) - 1
    budget = budget - 8
  end
  return nil, budget
end

-- Make messages of one topic wait again that are ready too early: the last ones of each priority. Start with the
-- priorities up to a bound; return where to continue, nil at the end.
local function turn_topic(topic, bound, budget)
  local name = KEY.ready .. topic
  come_again(topic, true)
  if settings(topic).fair then return turn_fair(topic, bound, budget) end
  local rank = call('ZCOUNT', name, '-inf', bound) - 1
  while rank >= 0 do
    if budget <= 0 then return bound, budget end
    local entry, priority = unpack(call('ZRANGE', name, rank, rank, 'WITHSCORES'))
    if unpack_from('>I6', entry) > now then
      budget = budget - demote(topic, entry, tonumber(priority))
      bound, rank = priority, call('ZCOUNT', name, '-inf', priority) - 1
    else
      bound = '(' .. priority
      rank = call('ZCOUNT', name, '-inf', bound) - 1
    end
    budget = budget - 1
  end
  return nil, budget
end

-- After the clock went back: walk all topics, some of them a call, and make messages wait again that are ready too
-- early; tell whether the walk is at its end. `turn` has its position; when the clock goes back again during the walk,
-- all are walked once more after it, so that every call makes progress.
local function turn_back(text, is_back)
  local walk = text and cmsgpack.unpack(text) or {cursor = '0', left = {}, bound = '+inf', rounds = 1}
  if text and is_back then walk.rounds = 2 end
  local left, budget = walk.left, LIMITS.budget
  while budget > 0 do
    if #left > 0 then
      walk.bound, budget = turn_topic(left[#left], walk.bound, budget)
      if not walk.bound then left[#left], walk.bound = nil, '+inf' end
    elseif walk.cursor ~= '' then
      local found = call('HSCAN', KEY.known, walk.cursor, 'COUNT', LIMITS.topics)
      walk.cursor = found[1] == '0' and '' or found[1]
      for i = 1, #found[2], 2 do left[#left + 1] = found[2][i] end
    elseif walk.rounds > 1 then
      walk.cursor, walk.rounds = '0', 1
    else
      call('HDEL', KEY.meta, 'turn')
      return true
    end
    budget = budget - 1
  end
  call('HSET', KEY.meta, 'turn', cmsgpack.pack(walk))
  return false
end

-- Apply the passing of time, as much as one call may; tell whether that was all.
function settle()
  local seen, turn = META.seen, META.turn
  if now ~= seen then call('HSET', KEY.meta, 'seen', now) end
  if (now < seen or turn) and not turn_back(turn, now < seen) then return false, false end
  forget_some(2)
  local budget = end_leases(LIMITS.budget)
  local has_lapsed = budget > 0
  local due = call('ZRANGEBYSCORE', KEY.timers, '-inf', now, 'LIMIT', 0, LIMITS.timers)
  for i = 1, #due do
    if budget > 0 then budget = end_waits(due[i], budget) end
    if budget > 0 then budget = promote(due[i], budget) end
    come_again(due[i])
    is_formed(due[i])
    touched[due[i]] = true
  end
  -- A take reads lanes next.
  open_lanes()
  return budget > 0 and #due < LIMITS.timers, has_lapsed
end
end
