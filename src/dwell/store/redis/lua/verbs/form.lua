-- Let some messages of a topic stand as its settings say, which have changed; done in any order, it can
-- be done again. `part` is 'ready', 'leased' or 'delayed'; `cursor` is where to go on, '0' at first.
-- Answers {where to go on, '0' at the end; finish()}.
verb('form', 3, function(topic, part, cursor)
  local name = part == 'leased' and KEY.leased or KEY[part] .. topic
  local some = call('ZSCAN', name, cursor, 'COUNT', LIMITS.looked)

  local function form_ready(entry, n)
    if #entry == 14 then
      -- What is taken of a topic with lanes is loose.
      local b = is_laned(topic) and head_at(n)
      return b and explode(n, call('GET', block_key(n)), b)
    end
    local text = call('HGET', KEY.messages, member(n))
    if not text then return end
    local r = decode(text)
    local key = key_of(r.extra)
    if key and not settings(topic).ordered then call('DEL', lane_key(topic, key)) end
    stand_ready(r, entry)
    if r.attempt > 0 then set_front(n, r) end
  end

  local function form_begun(entry, n)
    local text = read(n)
    local r = text and decode(text)
    if r and r.topic == topic and is_begun(r) then set_front(n, r) end
  end

  -- A block is in one state: all of it was taken, or none.
  local function form_block(n)
    local b = head_at(n)
    if not b or b.topic ~= topic or b.attempt == 0 then return end
    for slot = 0, b.size - 1 do form_begun(nil, n + slot) end
  end

  if part == 'ready' and not settings(topic).ordered then call('DEL', KEY.fronts .. topic) end
  for i = 1, #some[2], 2 do
    local entry = some[2][i]
    local n = unpack_from('>I7', entry, part == 'ready' and 7 or 1)
    if part == 'ready' then
      form_ready(entry, n)
    elseif #entry == 8 or #entry == 12 then
      form_block(n)
    else
      form_begun(entry, n)
    end
  end
  if some[1] == '0' and part == 'ready' then wake(topic, tonumber(call('HGET', KEY.counts .. topic, 'ready') or 0)) end
  return {some[1], finish()}
end)
