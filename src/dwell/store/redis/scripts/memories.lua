-- Return some of the acked ids that are remembered.
-- ARGV: 7 topic; 8 cursor. Answers {cursor, id and until when, in turn; finish()}.
local found = call('HSCAN', key('ids', ARGV[7]), ARGV[8], 'COUNT', 500)
local told = {}
for i = 1, #found[2], 2 do
  local ends = remembered_until(found[2][i + 1])
  if ends and ends > now then
    told[#told + 1] = found[2][i]
    told[#told + 1] = ends
  end
end
return {found[1], told, finish()}
