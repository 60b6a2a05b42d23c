-- Give messages back. `delay_ms` is '' for the topic's retry delay; `counts` is '1' if the attempt
-- counts, without which a delay of 0 leaves the due; `priority` is '' to leave it; `has_error` is '1'
-- if there is one. The list: groups of receipts as in ack.
-- Answers {a byte for each receipt: released, buried or stale; finish()}.
verb('release', 5, kept(function(delay_ms, counts, priority, has_error, error)
  settle()
  delay_ms = tonumber(delay_ms)
  local is_counted = counts == '1'

  local function retry_ms(r)
    local delays = settings(r.topic).retry_delays_ms
    if #delays == 0 then return 0 end
    return delays[math.min(math.max(r.attempt, 1), #delays)]
  end

  local function release(n, r)
    r = lifted(n, r)
    set_priority(r, priority)
    if has_error == '1' then r.error = error end
    if is_counted and is_used_up(r.attempt, r.most, r.topic) then
      bury(n, r, KIND.exhaust)
      return RESULT.buried
    end
    if is_counted or delay_ms ~= 0 then r.due = now + (delay_ms or retry_ms(r)) end
    if not is_counted then r.attempt = r.attempt - 1 end
    note(KIND.release, r.topic, r.id, r.due, r.attempt)
    wait(n, r)
    save(n, r)
    return RESULT.released
  end

  local results = {}
  for i = rest, #ARGV do results[#results + 1] = each_held(ARGV[i], release) end
  return {table.concat(results), finish()}
end))
