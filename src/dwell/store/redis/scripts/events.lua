-- Return what happened, from a position on.
-- ARGV: 7 position; 8 how many at least, where there are so many; 9 'events' of this shard, or
-- 'log' of all.
-- Answers {entries of the stream, the position of the oldest event that is kept, that of the next
-- to happen, finish()}, or {'again', finish()}.
if not settle() then return {'again', finish()} end
local done = finish()
local name, limit = base .. ':' .. ARGV[9], tonumber(ARGV[8])
local ends = tonumber(call('HGET', META, ARGV[9] == 'log' and 'logged' or 'position') or 0)
local oldest = call('XRANGE', name, '-', '+', 'COUNT', 1)[1]
local first = oldest and tonumber(oldest[1]:match('%d+')) - oldest[2][2] or ends
local entries, number, from = {}, 0, '(' .. string.format('%.0f', tonumber(ARGV[7])) .. '-0'
while number < limit do
  local found = call('XRANGE', name, from, '+', 'COUNT', 64)
  for i = 1, #found do
    entries[#entries + 1] = found[i]
    number = number + found[i][2][2]
    if number >= limit + 10000 then break end
  end
  if #found < 64 then break end
  from = '(' .. found[#found][1]
end
return {entries, first, ends, done}
