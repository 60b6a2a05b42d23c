-- Return messages by id. The list: ids. Answers {entries, finish()}: pairs of n and text, false for an unknown id, and of
-- the first ids only when messages are large, so that the caller asks for the others again; or {'again', finish()} when
-- due work comes first.
verb('get', 1, looking(function(topic)
  local entries, left = {}, LIMITS.looked
  for i = rest, #ARGV do
    local n = number_of(topic, ARGV[i])
    local text = n and read(n)
    local r = text and decode(text)
    local is_it = r and r.topic == topic and r.id == ARGV[i]
    entries[#entries + 1] = is_it and n or false
    entries[#entries + 1] = is_it and text or false
    left = left - 1 - (text and #text or 0) / BYTES_AS_ONE
    if left <= 0 then break end
  end
  return {entries, finish()}
end))
