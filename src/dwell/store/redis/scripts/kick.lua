-- Bring dead messages back.
-- ARGV: 7 topic; 8 delay in ms; from 9 on ids.
-- Answers {a byte for each id: 10 kicked, 14 unknown; finish()}.
local said = answered()
if said then return said end
settle()
local delay_ms = tonumber(ARGV[8])

local function kick(n, r)
  if r.state ~= DEAD then return '\14' end
  lift(n, r)
  r.due, r.attempt = now + delay_ms, 0
  if r.expires <= now then r.expires = 0 end
  note(10, r.topic, r.id, r.due, 0)
  wait(n, r)
  save(n, r)
  return '\10'
end

return answer({each_named(ARGV[7], 9, kick), finish()})
