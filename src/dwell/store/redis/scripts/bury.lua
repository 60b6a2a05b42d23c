-- Set messages aside as dead.
-- ARGV: 7 priority or ''; 8 '1' if there is a reason; 9 the reason; from 10 on groups of receipts as
-- in ack. Answers {a byte for each receipt: 8 buried, 9 stale; finish()}.
local said = answered()
if said then return said end
settle()

local function set_aside(n, r)
  r = lifted(n, r)
  set_priority(r, ARGV[7])
  if ARGV[8] == '1' then r.error = ARGV[9] end
  bury(n, r, 9)
  return '\8'
end

local results = {}
for i = 10, #ARGV do results[#results + 1] = each_held(ARGV[i], set_aside) end
return answer({table.concat(results), finish()})
