-- Forget messages that nobody has taken; `versions` are those that they must have, 8 bytes each, or ''.
-- The list: ids. Answers {a byte for each: cancelled, leased or unknown; finish()}, of the first only where
-- messages are large.
verb('cancel', 2, kept(function(topic, versions)
  settle()

  -- Forget a message where it lies, in a block.
  local function discard(n, r)
    if settings(r.topic).ordered then leave_place(with_data(n, r, r.block), ready_member(n, r.due)) end
    heads[n] = nil
    count(r.topic, is_ready(n - n % 64, r.block) and 'ready' or 'delayed', -1)
    take_out(n, r.block)
    free_id(r.topic, r.id)
  end

  local function cancel(n, r)
    if r.state == STATE.leased then return RESULT.leased end
    note(KIND.cancel, r.topic, r.id, r.due, r.attempt)
    if r.is_packed then
      discard(n, r)
    else
      lift(n, r)
      forget(n, r)
    end
    return RESULT.cancelled
  end

  return {each_named(topic, versions, cancel), finish()}
end))
