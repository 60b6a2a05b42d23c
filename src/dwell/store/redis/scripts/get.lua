-- Return messages by id.
-- ARGV: 7 topic; from 8 on ids. Answers {entries, finish()}: pairs of n and text, false where an
-- id is unknown; or {'again', finish()} when time has more to do first.
if not settle() then return {'again', finish()} end
local topic, entries = ARGV[7], {}
for i = 8, #ARGV do
  local n = number_of(topic, ARGV[i])
  local text = n and read(n)
  local r = text and decode(text)
  local is_it = r and r.topic == topic and r.id == ARGV[i]
  entries[#entries + 1] = is_it and n or false
  entries[#entries + 1] = is_it and text or false
end
return {entries, finish()}
