-- Take in messages that come from another shard, as they are; whoever had one has it no more.
-- ARGV: from 7 on at most 64 texts of loose messages. One that is here already is left out, so that
-- a move that was cut off can be made again. Answers {how many are here now, finish()}.
local said = answered()
if said then return said end
local first, number = call('HINCRBY', META, 'block', 1) * 64, 0
for i = 7, #ARGV do
  local n, r = first + i - 7, decode(ARGV[i])
  if is_made(r.id) or not number_of(r.topic, r.id) then
    if not is_made(r.id) then
      local ends = remembered_until(call('HGET', key('ids', r.topic), r.id) or nil)
      if ends then call('HSET', key('earlier', r.topic), r.id, string.format('%.0f', ends)) end
      call('HSET', key('ids', r.topic), r.id, pack('>I6', n))
    end
    enter({n})
    learn_priority(r.topic, r.priority)
    if r.state == LEASED then
      r.owner, r.ends = '', 0
      note(6, r.topic, r.id, r.due, r.attempt)
    end
    if r.state == DEAD then
      call('ZADD', key('dead', r.topic), r.due, member(n))
      count(r.topic, 'dead', 1)
    else
      wait(n, r)
    end
    save(n, r)
  end
  number = number + 1
end
return answer({number, finish()})
