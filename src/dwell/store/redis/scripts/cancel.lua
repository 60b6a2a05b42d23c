-- Forget messages that nobody has taken.
-- ARGV: 7 topic; from 8 on ids.
-- Answers {a byte for each id: 11 cancelled, 13 leased, 14 unknown; finish()}.
local said = answered()
if said then return said end
settle()

-- Forget a message where it lies, in a block.
local function discard(n, r)
  count(r.topic, is_ready(n - n % 64, r.block) and 'ready' or 'delayed', -1)
  take_out(n, r.block)
  free_id(r.topic, r.id)
end

local function cancel(n, r)
  if r.state == LEASED then return '\13' end
  note(11, r.topic, r.id, r.due, r.attempt)
  if r.is_packed then
    discard(n, r)
  else
    lift(n, r)
    forget(n, r)
  end
  return '\11'
end

return answer({each_named(ARGV[7], 8, cancel), finish()})
