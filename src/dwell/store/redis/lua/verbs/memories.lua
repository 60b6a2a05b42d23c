-- Return some of the remembered acked ids; `which` is 'ids', or 'earlier' for ids that are in use again. Answers
-- {cursor, id and time, alternating; finish()}.
verb('memories', 3, function(topic, cursor, which)
  local found = call('HSCAN', KEY[which] .. topic, cursor, 'COUNT', LIMITS.forgotten)
  local told = {}
  for i = 1, #found[2], 2 do
    local ends = which == 'ids' and remembered_until(found[2][i + 1]) or nil
    if which == 'earlier' then ends = tonumber(found[2][i + 1]) end
    if ends and ends > now then
      told[#told + 1] = found[2][i]
      told[#told + 1] = ends
    end
  end
  return {found[1], told, finish()}
end)
