-- Return the topics of the messages whose receipts are still good.
-- The list: groups of receipts as in ack. Answers {topics, finish()}.
verb('taken_from', 0, function()
  settle()
  local topics, names = {}, {}

  local function add(held)
    if held and not topics[held.topic] then
      topics[held.topic] = true
      names[#names + 1] = held.topic
    end
  end

  for i = rest, #ARGV do
    local first, take = unpack_from('>I7I4', ARGV[i])
    local b = held_block(first, take)
    for at = 12, #ARGV[i] do
      add(held_by(first + ARGV[i]:byte(at), take))
      -- Of a block, one says for all, unless it was taken out.
      if b and topics[b.topic] then break end
    end
  end
  return {names, finish()}
end)
