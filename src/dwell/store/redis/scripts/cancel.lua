-- Forget messages that nobody has taken.
-- ARGV: 7 topic; from 8 on ids.
-- Answers {a byte for each id: 11 cancelled, 13 leased, 14 unknown; finish()}.
local said = answered()
if said then return said end
settle()

local function cancel(n, r)
  if r.state == LEASED then return '\13' end
  note(11, r.topic, r.id, r.due, r.attempt)
  lift(n, r)
  forget(n, r)
  return '\11'
end

return answer({each_named(ARGV[7], 8, cancel), finish()})
