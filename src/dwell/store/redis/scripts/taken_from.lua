-- Return the topics of the messages whose receipts are still good.
-- ARGV: from 7 on groups of receipts as in ack. Answers {topics, finish()}.
settle()
local topics, names = {}, {}
for i = 7, #ARGV do
  local first, take = unpack_from('>I7I4', ARGV[i])
  for at = 12, #ARGV[i] do
    local text = read(first + ARGV[i]:byte(at))
    local r = text and decode(text)
    if r and r.state == LEASED and r.take == take and r.ends > now and not topics[r.topic] then
      topics[r.topic] = true
      names[#names + 1] = r.topic
    end
  end
end
return {names, finish()}
