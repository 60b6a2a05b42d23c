-- Set messages aside as dead; `priority` is '' to leave it, `has_reason` '1' if there is one. The list: groups of
-- receipts as in ack. Answers {a byte for each receipt: buried or stale; finish()}, for the first groups only when
-- messages are large.
verb('bury', 3, kept(function(priority, has_reason, reason)
  settle()

  local function set_aside(n, r)
    r = lifted(n, r)
    set_priority(r, priority)
    if has_reason == '1' then r.error = reason end
    bury(n, r, KIND.bury)
    return RESULT.buried
  end

  return {each_receipt(set_aside), finish()}
end))
