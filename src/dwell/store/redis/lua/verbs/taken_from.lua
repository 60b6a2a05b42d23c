-- Return the topic of the message of each receipt, '' for a stale receipt. The list: groups of receipts as in ack.
-- Answers {topics, finish()}.
verb('taken_from', 0, function()
  settle()
  local topics = {}
  for i = rest, #ARGV do
    local first, take = unpack_from('>I7I4', ARGV[i])
    for at = 12, #ARGV[i] do
      local held = held_by(first + ARGV[i]:byte(at), take)
      topics[#topics + 1] = held and held.topic or ''
    end
  end
  return {topics, finish()}
end)
