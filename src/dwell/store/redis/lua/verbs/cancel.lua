do
-- Delete a message in its block, without taking it out.
local function discard(n, r)
  if settings(r.topic).ordered then leave_place(with_data(n, r, r.block), ready_member(n, r.due)) end
  heads[n] = nil
  count(r.topic, is_ready(n - n % 64, r.block) and 'ready' or 'delayed', -1)
  take_out(n, r.block)
  free_id(r.topic, r.id)
end

local function cancel(n, r)
  if r.state == STATE.leased then return RESULT.leased end
  note(KIND.cancel, r.topic, r.id, r.due, r.attempt)
  if r.is_packed then
    discard(n, r)
  else
    lift(n, r)
    forget(n, r)
  end
  return RESULT.cancelled
end

-- Delete messages that are not leased; `versions` are the versions that they must have, 8 bytes each, or ''. The list:
-- ids. Answers {a byte for each: cancelled, leased or unknown; finish()}, for the first only when messages are large.
verb('cancel', 2, kept(function(topic, versions)
  settle()
  return {each_named(topic, versions, cancel), finish()}
end))

-- Delete some messages of a topic that are not leased, with numbers before `bound`; 0 for all that exist now. Answers
-- {how many; '1' when there may be more, else ''; the bound; finish()}, or {'again', finish()}.
verb('clear', 2, kept(function(topic, bound)
  if not settle() or not is_formed(topic) then return {'again', finish()} end
  local number, left = 0, LIMITS.loose
  bound = tonumber(bound)
  if bound == 0 then bound = (tonumber(call('HGET', KEY.meta, 'block') or 0) + 1) * 64 end

  local function clear_block(n, b)
    local text = names_at(n, b)
    count(topic, lift_block(n, b) and 'ready' or 'delayed', -b.live)
    note_block(KIND.cancel, n, b, b.attempt, text)
    if b.own_ids then
      local names, index, own = ids_of(text, b, n), index_of(text, b), {}
      for slot = 0, b.size - 1 do
        if index[3 * slot + 1] == 0 then own[#own + 1] = names[slot + 1] end
      end
      if call('EXISTS', KEY.earlier .. topic) == 0 then
        many('HDEL', KEY.ids .. topic, own)
      else
        for i = 1, #own do free_id(topic, own[i]) end
      end
    end
    drop_block(n)
    number, left = number + b.live, left - 4
  end

  local function clear_one(n)
    local r = find(n)
    if r and cancel(n, r) == RESULT.cancelled then number = number + 1 end
    left = left - 1 - (r and r.body and #r.body or 0) / BYTES_AS_ONE
  end

  -- Clear the members of a set; `from` is the offset of the number in a member, `block_size` the size of a block's
  -- member.
  local function clear_set(name, from, block_size)
    local passed = 0
    while left > 0 do
      local found = call('ZRANGE', name, passed, passed + 15)
      if #found == 0 then return end
      for i = 1, #found do
        local n = unpack_from('>I7', found[i], from)
        local b = #found[i] == block_size and head_at(n)
        if n >= bound then
          passed, left = passed + 1, left - 0.01
        elseif b and not is_laned(topic) then
          clear_block(n, b)
        elseif b then
          for slot = 0, b.size - 1 do
            if not is_gone(n, b, slot) then clear_one(n + slot) end
          end
        else
          clear_one(n)
        end
        -- A member of the set that exists nowhere else is outdated.
        if n < bound then call('ZREM', name, found[i]) end
        if left <= 0 then return end
      end
    end
  end

  clear_set(KEY.delayed .. topic, 1, 12)
  clear_set(KEY.ready .. topic, 7, 14)
  clear_set(KEY.dead .. topic, 1, 0)
  -- If the sets have one message of each key, the next ones may appear from now on. A call that finds only later
  -- messages, and very many of them, is at the end.
  local has_more = number > 0 and (left <= 0 or is_laned(topic))
  return {number, has_more and '1' or '', string.format('%.0f', bound), finish()}
end))
end
