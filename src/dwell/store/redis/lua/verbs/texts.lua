-- Return messages by number. The list: numbers n. Answers {pairs of n and text, false without a message; finish()}, or
-- {'again', finish()}.
verb('texts', 0, looking(function()
  local entries = {}
  for i = rest, #ARGV do
    entries[#entries + 1] = tonumber(ARGV[i])
    entries[#entries + 1] = read(tonumber(ARGV[i]))
  end
  return {entries, finish()}
end))
