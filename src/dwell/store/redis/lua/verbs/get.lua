-- Return messages by id. The list: ids. Answers {entries, finish()}: pairs of n and text, false for an unknown id; or
-- {'again', finish()} when due work comes first.
verb('get', 1, looking(function(topic)
  local entries = {}
  for i = rest, #ARGV do
    local n = number_of(topic, ARGV[i])
    local text = n and read(n)
    local r = text and decode(text)
    local is_it = r and r.topic == topic and r.id == ARGV[i]
    entries[#entries + 1] = is_it and n or false
    entries[#entries + 1] = is_it and text or false
  end
  return {entries, finish()}
end))
