-- Do what time asks for.
-- ARGV: from 7 on topics that somebody waits for.
-- Answers {whether all is done, pairs of such a topic and how many messages are ready, finish()}.
local is_settled = settle()
local done = finish()
local ready = {}
for i = 7, #ARGV do
  local number = call('HGET', key('counts', ARGV[i]), 'ready')
  if number and number ~= '0' and not settings(ARGV[i]).paused then
    ready[#ready + 1] = ARGV[i]
    ready[#ready + 1] = tonumber(number)
  end
end
return {is_settled and 1 or 0, ready, done}
