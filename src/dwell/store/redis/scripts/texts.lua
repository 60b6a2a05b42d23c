-- Return messages by number.
-- ARGV: from 7 on numbers n. Answers {pairs of n and text, false where there is none; finish()}, or
-- {'again', finish()}.
if not settle() then return {'again', finish()} end
local entries = {}
for i = 7, #ARGV do
  entries[#entries + 1] = tonumber(ARGV[i])
  entries[#entries + 1] = read(tonumber(ARGV[i]))
end
return {entries, finish()}
