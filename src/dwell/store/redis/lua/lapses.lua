-- Lapses: ends of leases, and of messages that expire.
local function expire(n, r)
  r.error = 'expired'
  bury(n, r, KIND.expire)
end

local function lapse(n, r)
  lift(n, r)
  if is_used_up(r.attempt, r.most, r.topic) then
    r.error = 'lease ended'
    return bury(n, r, KIND.exhaust)
  end
  note(KIND.lapse, r.topic, r.id, r.due, r.attempt)
  if r.expires > 0 and r.expires <= now then return expire(n, r) end
  wait(n, r)
  save(n, r)
end

local end_leases, end_waits
do
-- End the lease of a loose message; return the cost, in units of one small message.
local function lapse_loose(name)
  local text = call('HGET', KEY.messages, name)
  lapse(unpack_from('>I7', name), decode(text))
  -- The text is written as well.
  return 1 + 2 * #text / BYTES_AS_ONE
end

-- End the lease of a block; return the cost.
local function lapse_block(n)
  local b = head_at(n)
  if is_used_up(b.attempt, b.most, b.topic) or is_laned(b.topic) then
    -- Messages taken out of it before are handled on their own.
    local numbers = explode(n, call('GET', block_key(n)), b)
    local cost = 0
    for i = 1, #numbers do cost = cost + lapse_loose(member(numbers[i])) end
    return cost
  end
  lift_block(n, b)
  note_block(KIND.lapse, n, b, b.attempt, names_at(n, b))
  set_lease(n, b, STATE.waiting, b.flags % 2, b.attempt, b.take, 0)
  local ready, delayed = block_entry(n, b)
  count(b.topic, 'leased', -b.live)
  if b.due <= now then
    call('ZADD', KEY.ready .. b.topic, b.priority, ready)
    count(b.topic, 'ready', b.live)
    wake(b.topic, b.live)
  else
    call('ZADD', KEY.delayed .. b.topic, b.due, delayed)
    count(b.topic, 'delayed', b.live)
  end
  return 8
end

function end_leases(budget)
  local found = call('ZRANGEBYSCORE', KEY.leased, '-inf', now, 'LIMIT', 0, budget)
  for i = 1, #found do
    budget = budget - (#found[i] == 8 and lapse_block(unpack_from('>I7', found[i])) or lapse_loose(found[i]))
    if budget <= 0 then break end
  end
  return budget
end

function end_waits(topic, budget)
  local found = call('ZRANGEBYSCORE', KEY.expiring .. topic, '-inf', now, 'LIMIT', 0, math.ceil(budget))
  for i = 1, #found do
    local n, text = unpack_from('>I7', found[i]), call('HGET', KEY.messages, found[i])
    local r = decode(text)
    lift(n, r)
    expire(n, r)
    budget = budget - 1 - 2 * #text / BYTES_AS_ONE
    if budget <= 0 then break end
  end
  return budget
end
end
