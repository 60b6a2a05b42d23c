-- Change when messages fall due; `dues` are times in ms, 6 bytes each; `versions` as in cancel. The list: ids. Answers
-- {a byte for each: moved, leased or unknown; finish()}, for the first only when messages are large.
verb('reschedule', 3, kept(function(topic, versions, dues)
  settle()

  local function move(n, r, i)
    if r.state == STATE.leased then return RESULT.leased end
    if r.state == STATE.dead then return RESULT.unknown end
    local due = unpack_from('>I6', dues, 6 * (i - rest) + 1)
    note(KIND.move, r.topic, r.id, due, r.attempt)
    -- A message with an unchanged due and expiry stays in its place.
    if due == r.due and (r.expires == 0 or r.expires > due) then return RESULT.moved end
    r = lifted(n, r)
    r.due, r.take = due, lives.next_take(r.take)
    if r.expires <= due then r.expires = 0 end
    if settings(topic).forming then keep_front(n, r) end
    wait(n, r)
    save(n, r)
    return RESULT.moved
  end

  return {each_named(topic, versions, move), finish()}
end))
