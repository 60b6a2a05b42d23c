-- Give messages back. `delays` are times in ms, 6 bytes for each receipt or for all, or '' for the topic's retry delay;
-- `errors` is MessagePack, a text for all or a list, nil or false for none; `counts` is '1' if the attempt counts,
-- otherwise a delay of 0 keeps the due; `priority` is '' to leave it. The list: groups of receipts as in ack. Answers
-- {a byte for each receipt: released, buried or stale; finish()}, for the first groups only when messages are large.
verb('release', 4, kept(function(delays, errors, counts, priority)
  settle()
  errors = cmsgpack.unpack(errors)
  local is_counted, is_list = counts == '1', type(errors) == 'table'

  local function retry_ms(r)
    local steps = settings(r.topic).retry_delays_ms
    if #steps == 0 then return 0 end
    return steps[math.min(math.max(r.attempt, 1), #steps)]
  end

  local function release(n, r, at)
    local delay_ms = delays ~= '' and unpack_from('>I6', delays, #delays > 6 and 6 * at - 5 or 1)
    r = lifted(n, r)
    set_priority(r, priority)
    local error = is_list and errors[at] or not is_list and errors
    if error then r.error = error end
    if is_counted and is_used_up(r.attempt, r.most, r.topic) then
      bury(n, r, KIND.exhaust)
      return RESULT.buried
    end
    local due = (is_counted or delay_ms ~= 0) and now + (delay_ms or retry_ms(r)) or r.due
    if r.expires > 0 and r.expires <= math.max(due, now) then
      -- It will have expired at its next attempt.
      r.error = error or 'expired'
      bury(n, r, KIND.bury)
      return RESULT.buried
    end
    r.due = due
    if not is_counted then r.attempt = r.attempt - 1 end
    note(KIND.release, r.topic, r.id, r.due, r.attempt)
    wait(n, r)
    save(n, r)
    return RESULT.released
  end

  return {each_receipt(release), finish()}
end))
