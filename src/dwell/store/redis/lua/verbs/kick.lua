-- Bring dead messages back; `versions` as in cancel.
-- The list: ids. Answers {a byte for each: kicked or unknown; finish()}, of the first only where
-- messages are large.
verb('kick', 3, kept(function(topic, versions, delay_ms)
  settle()
  delay_ms = tonumber(delay_ms)

  local function kick(n, r)
    if r.state ~= STATE.dead then return RESULT.unknown end
    lift(n, r)
    r.due, r.attempt, r.take = now + delay_ms, 0, lives.next_take(r.take)
    if r.expires <= r.due then r.expires = 0 end
    note(KIND.kick, r.topic, r.id, r.due, 0)
    wait(n, r)
    save(n, r)
    return RESULT.kicked
  end

  return {each_named(topic, versions, kick), finish()}
end))
