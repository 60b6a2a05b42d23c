-- Give messages back.
-- ARGV: 7 delay in ms, '' for the topic's retry delay; 8 '1' if the attempt counts, without which
-- a delay of 0 leaves the due; 9 priority or '';
-- 10 '1' if there is an error; 11 the error; from 12 on groups of receipts as in ack.
-- Answers {a byte for each receipt: 6 released, 8 buried, 9 stale; finish()}.
local said = answered()
if said then return said end
settle()
local delay_ms, is_counted = tonumber(ARGV[7]), ARGV[8] == '1'

local function retry_ms(r)
  local delays = settings(r.topic).retry_delays_ms
  if #delays == 0 then return 0 end
  return delays[math.min(math.max(r.attempt, 1), #delays)]
end

local function release(n, r)
  r = lifted(n, r)
  set_priority(r, ARGV[9])
  if ARGV[10] == '1' then r.error = ARGV[11] end
  if is_counted and is_used_up(r.attempt, r.most, r.topic) then
    bury(n, r, 7)
    return '\8'
  end
  if is_counted or delay_ms ~= 0 then r.due = now + (delay_ms or retry_ms(r)) end
  if not is_counted then r.attempt = r.attempt - 1 end
  note(5, r.topic, r.id, r.due, r.attempt)
  wait(n, r)
  save(n, r)
  return '\6'
end

local results = {}
for i = 12, #ARGV do results[#results + 1] = each_held(ARGV[i], release) end
return answer({table.concat(results), finish()})
