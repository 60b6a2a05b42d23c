-- Return messages by number. The list: numbers n. Answers {pairs of n and text, false without a message, of the first
-- numbers only when messages are large; finish()}, or {'again', finish()}.
verb('texts', 0, looking(function()
  local entries, left = {}, LIMITS.looked
  for i = rest, #ARGV do
    local text = read(tonumber(ARGV[i]))
    entries[#entries + 1] = tonumber(ARGV[i])
    entries[#entries + 1] = text
    left = left - 1 - (text and #text or 0) / BYTES_AS_ONE
    if left <= 0 then break end
  end
  return {entries, finish()}
end))
