-- Let leases end later, or sooner.
-- ARGV: 7 lease in ms from now, 0 for as at take; from 8 on groups of receipts as in ack.
-- Answers {a byte for each receipt: 7 touched, 9 stale; finish()}.
local said = answered()
if said then return said end
settle()
local lease_ms = tonumber(ARGV[7])

local function touch(n, r)
  r.ends = now + (lease_ms > 0 and lease_ms or r.lease > 0 and r.lease or settings(r.topic).lease_ms)
  call('ZADD', LEASES, r.ends, member(n))
  save(n, r)
  return '\7'
end

local results = {}
for i = 8, #ARGV do results[#results + 1] = each_held(ARGV[i], touch) end
return answer({table.concat(results), finish()})
