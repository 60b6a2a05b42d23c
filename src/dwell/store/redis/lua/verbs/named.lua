-- Return topic and id of messages by number. The list: numbers n. Answers {pairs of topic and id, false without a
-- message; finish()}.
verb('named', 0, function()
  local names = {}
  for i = rest, #ARGV do
    local text = read(tonumber(ARGV[i]))
    local r = text and decode(text)
    names[#names + 1] = r and r.topic or false
    names[#names + 1] = r and r.id or false
  end
  return {names, finish()}
end)
