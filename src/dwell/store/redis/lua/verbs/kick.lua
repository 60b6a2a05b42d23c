-- Bring dead messages back; `dues` as in reschedule, dues in the past become now; `versions` as in cancel. The list:
-- ids. Answers {a byte for each: kicked or unknown; finish()}, for the first only when messages are large.
verb('kick', 3, kept(function(topic, versions, dues)
  settle()

  local function kick(n, r, i)
    if r.state ~= STATE.dead then return RESULT.unknown end
    lift(n, r)
    local due = unpack_from('>I6', dues, 6 * (i - rest) + 1)
    r.due, r.attempt, r.take = math.max(due, now), 0, lives.next_take(r.take)
    if r.expires <= r.due then r.expires = 0 end
    note(KIND.kick, r.topic, r.id, r.due, 0)
    wait(n, r)
    save(n, r)
    return RESULT.kicked
  end

  return {each_named(topic, versions, kick), finish()}
end))
