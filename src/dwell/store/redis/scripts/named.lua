-- Return topic and id of messages by number.
-- ARGV: from 7 on numbers n. Answers {pairs of topic and id, false where there is none; finish()}.
local names = {}
for i = 7, #ARGV do
  local text = read(tonumber(ARGV[i]))
  local r = text and decode(text)
  names[#names + 1] = r and r.topic or false
  names[#names + 1] = r and r.id or false
end
return {names, finish()}
