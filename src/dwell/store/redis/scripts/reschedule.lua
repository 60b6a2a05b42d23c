-- Change when messages fall due.
-- ARGV: 7 topic; 8 dues in ms, 6 bytes each; from 9 on ids.
-- Answers {a byte for each id: 12 moved, 13 leased, 14 unknown; finish()}.
local said = answered()
if said then return said end
settle()

local function move(n, r, i)
  if r.state == LEASED then return '\13' end
  if r.state == DEAD then return '\14' end
  local due = unpack_from('>I6', ARGV[8], 6 * (i - 9) + 1)
  note(12, r.topic, r.id, due, r.attempt)
  -- What moves nowhere stays where it lies.
  if due == r.due then return '\12' end
  r = lifted(n, r)
  r.due = due
  wait(n, r)
  save(n, r)
  return '\12'
end

return answer({each_named(ARGV[7], 9, move), finish()})
