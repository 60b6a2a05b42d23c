-- Return some of the acked ids that are remembered.
-- ARGV: 7 topic; 8 cursor; 9 'ids', or 'earlier' for those that are in use again.
-- Answers {cursor, id and until when, in turn; finish()}.
local found = call('HSCAN', key(ARGV[9], ARGV[7]), ARGV[8], 'COUNT', LIMITS.forgotten)
local told = {}
for i = 1, #found[2], 2 do
  local ends = ARGV[9] == 'ids' and remembered_until(found[2][i + 1]) or nil
  if ARGV[9] == 'earlier' then ends = tonumber(found[2][i + 1]) end
  if ends and ends > now then
    told[#told + 1] = found[2][i]
    told[#told + 1] = ends
  end
end
return {found[1], told, finish()}
