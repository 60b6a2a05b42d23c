-- Adopt messages from another shard, unchanged; a message under lease has its lease ended, and is dead if its attempts
-- are used up. The list: at most 64 texts of loose messages. A message that exists here already is left out, so that an
-- interrupted move can be repeated. Answers {how many are here now, finish()}.
verb('adopt', 0, kept(function()
  local first, number = call('HINCRBY', KEY.meta, 'block', 1) * 64, 0
  for i = rest, #ARGV do
    local n, r = first + i - rest, decode(ARGV[i])
    if is_made(r.id) or not number_of(r.topic, r.id) then
      if not is_made(r.id) then
        local ends = remembered_until(call('HGET', KEY.ids .. r.topic, r.id) or nil)
        if ends then call('HSET', KEY.earlier .. r.topic, r.id, string.format('%.0f', ends)) end
        call('HSET', KEY.ids .. r.topic, r.id, pack('>I6', n))
      end
      enter({n})
      learn_priority(r.topic, r.priority)
      local was_leased = r.state == STATE.leased
      if was_leased then r.state, r.owner, r.ends = STATE.waiting, '', 0 end
      if was_leased and is_used_up(r.attempt, r.most, r.topic) then
        r.error = 'lease ended'
        bury(n, r, KIND.exhaust)
      else
        if was_leased then note(KIND.lapse, r.topic, r.id, r.due, r.attempt) end
        save(n, r)
        if r.state == STATE.dead then
          call('ZADD', KEY.dead .. r.topic, r.due, member(n))
          count(r.topic, 'dead', 1)
        else
          wait(n, r)
          if r.attempt > 0 then
            keep_front(n, r)
            mark(r)
          end
        end
      end
    end
    number = number + 1
  end
  return {number, finish()}
end))
