-- Let leases end later, or sooner.
-- ARGV: 7 lease in ms from now, 0 for its own; from 8 on groups of receipts as in ack.
-- Answers {a byte for each receipt: 7 touched, 9 stale; finish()}.
local said = answered()
if said then return said end
settle()
local lease_ms = tonumber(ARGV[7])

local function touch(n, r)
  r = hold(n, r)
  r.ends = lease_end(lease_ms, r.lease, r.topic)
  call('ZADD', LEASES, r.ends, member(n))
  save(n, r)
  return '\7'
end

-- Touch a block that is named as a whole; nil when that is not so.
local function touch_block(group)
  local n, take = unpack_from('>I7I4', group)
  local b = held_block(n, take)
  if not b or not is_whole(b, group:sub(12)) then return nil end
  local ends = lease_end(lease_ms, b.lease, b.topic)
  call('SETRANGE', block_key(n), 10, pack('>I6', ends))
  call('ZADD', LEASES, ends, member(n) .. 'b')
  return string.rep('\7', b.size)
end

local results = {}
for i = 8, #ARGV do results[#results + 1] = touch_block(ARGV[i]) or each_held(ARGV[i], touch) end
return answer({table.concat(results), finish()})
