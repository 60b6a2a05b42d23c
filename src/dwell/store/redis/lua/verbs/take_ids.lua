-- Lease some messages by id, if they are ready; `lease_ms` is 0 for each message's own; `versions` as in cancel. The
-- list: ids. Answers {'ok', entries, finish()} or {'again', finish()} as take does.
verb('take_ids', 4, function(topic, versions, lease_ms, owner)
  local taken = answered()
  if taken and taken[1] == 'late' then return taken end
  if taken then
    for i = 1, #taken, 2 do taken[i + 1] = still(taken[i]) end
    return {'ok', taken, finish()}
  end
  if not settle() and is_laned(topic) then return {'again', finish()} end
  if not is_formed(topic) then return {'again', finish()} end
  lease_ms = tonumber(lease_ms)
  local of, entries, said, bound, turns_of = settings(topic), {}, {}, allowed(topic), {}
  local bytes_left = LIMITS.taken * BYTES_AS_ONE

  local function lease(n, r)
    if of.paused or r.state ~= STATE.waiting or r.due > now or bound <= 0 or bytes_left <= 0 then return '' end
    if of.ordered then
      r = hold(n, r)
      if not may_go(n, r) then return '' end
    end
    local key = of.fair and key_of(r.extra) or nil
    local lane = turns_field(key)
    if of.fair then turns_of[lane] = (turns_of[lane] or 0) + 1 end
    local turn = key and of.ordered and call('ZSCORE', KEY.ready .. topic, ready_member(n, r.due))
    if turn then call('ZADD', KEY.turns .. topic, turn, lane) end
    r = lifted(n, r, true)
    bound, bytes_left = bound - 1, bytes_left - #r.body
    r.state, r.attempt, r.take, r.owner = STATE.leased, r.attempt + 1, lives.next_take(r.take), owner
    r.ends = lease_end(lease_ms, r.lease, topic)
    call('ZADD', KEY.leased, r.ends, member(n))
    if owner ~= '' then call('SADD', KEY.owner .. owner, member(n)) end
    begin_front(n, r)
    count(topic, 'leased', 1)
    note(KIND.take, topic, r.id, r.due, r.attempt)
    save(n, r)
    said[#said + 1] = member(n) .. pack('>I4', r.take)
    said[#said + 1] = ''
    entries[#entries + 1] = said[#said - 1]
    entries[#entries + 1] = encode(r)
    return ''
  end

  each_named(topic, versions, lease, true)
  spend(topic, #said / 2)
  -- No turn has come, but when no message waits, all keys are dropped.
  if of.fair and #said > 0 then
    use_turns_by_ids(topic, turns_of)
    move_turns(topic, FIRST_TURN, 0)
  end
  answer(said)
  return {'ok', entries, finish()}
end)
