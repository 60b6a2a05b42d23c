-- Lining up: whole blocks of ordered topics, whose messages are due together. Such a block is available when one of its
-- messages is the first of its line, and is parked when each is behind others, there or in its lane. A block with both
-- kinds is mixed, and is sorted out only when it comes to be taken, because by then most messages have become the first
-- of their lines: then the minority of its messages become loose. Only names that other files need are visible there:
-- Lua allows a limited number.
local is_lined, line_up_block, leave_line, leave_fronts, unmix
do
-- The cost of making messages of one block available, in units of one loose message.
local TO_STAND = 0.2

-- Tell whether a block may be available, or parked, as a whole; all of its topic must have one priority.
function is_lined(b)
  return may_be_lined(b.topic) and b.attempt == 0 and b.due == b.last
    and call('HGET', KEY.known, b.topic) == tostring(b.priority)
end

-- Return a function from slot to the entry of a message, for a block of one due.
local function entries_of(n, b)
  local before, low = ready_member(n, b.due):sub(1, 12), n % 256
  return function(slot) return before .. string.char(low + slot) end
end

-- Tell whether a ready block is parked, and whether it is available.
local function is_parked(n, b)
  local score = is_ready(n, b)
  return score and tonumber(score) >= PARKED
end
local function stands(n, b) return b and (b.is_mixed or (is_ready(n, b) and not is_parked(n, b))) end

-- Make a block available, or park it.
local function stand_block(n, b, will_stand)
  call('ZADD', KEY.ready .. b.topic, will_stand and b.priority or PARKED + b.priority, (block_entry(n, b)))
end

-- Make a block that has become ready available, or park it. `is_first` has for each slot whether its message is the
-- first of its key.
local function place_block(n, b, is_first)
  local number, others = 0, 0
  for _, is in pairs(is_first) do
    if is then number = number + 1 else others = others + 1 end
  end
  wake(b.topic, number)
  stand_block(n, b, number > 0)
  set_mixed(n, b, number > 0 and others > 0)
end

-- Put a message of a block behind others of its key: in their line, or else in the lane.
local function wait_behind(b, key, entry)
  local front = fronts[b.topic][key]
  local longer = line.is(front) and line.joined(front, entry)
  if longer then return write_fronts(b.topic, key, longer) end
  if line.is(front) then cut_line(b.topic, key) end
  call('ZADD', lane_key(b.topic, key), b.priority, entry)
  note_others(b.topic, key)
end

-- Tell whether a block comes before the first of a line; it takes the place of a loose first entry. `mixed` collects
-- the heads of other available blocks, which become mixed.
local function comes_before(topic, n, due, front, mixed)
  local its_due, m = unpack_from('>I6I7', front, 7)
  if its_due < due or (its_due == due and m < n) then return false end
  local score = tonumber(call('ZSCORE', KEY.ready .. topic, line.first(front)) or nil)
  if score then
    if score < PARKED then call('ZADD', KEY.ready .. topic, PARKED + score, line.first(front)) end
    return true
  end
  local first = m - m % 64
  if mixed[first] == nil then
    local b = head_at(first)
    mixed[first] = stands(first, b) and b or false
  end
  local b = mixed[first]
  -- A message taken out of an available block may be leased.
  if not b or is_gone(first, b, m % 64) then return false end
  set_mixed(first, b, true)
  return true
end

-- Return the marks of a front with the mark of a block at the end; false when it does not belong there.
local function with_mark(text, n, b)
  if not line.is_marks(text) or #text > 7 * LIMITS.lined then return false end
  local m = unpack_from('>I7', text, #text - 7)
  local last = head_at(m)
  local is_behind = last and (last.due < b.due or (last.due == b.due and m < n))
  return is_behind and last.topic == b.topic and last.priority == b.priority and text:sub(1, -2) .. line.mark(n)
end

-- Return the cost of taking a front apart, in units of one loose message. Each mark is looked up in its block.
local function front_cost(text) return 0.2 + #text / (line.is_marks(text) and 25 or 250) end

-- Add the mark of a block to the fronts of its keys, if these are empty or have only marks. Return for each slot
-- whether its message is the first, the keys of the remaining slots, a list of these, and their cost: taking apart long
-- lines takes long.
local function mark_fronts(n, b, keys, names)
  local texts, of, mark = look_up('HMGET', KEY.fronts .. b.topic, names), fronts[b.topic] or {}, line.mark(n)
  local longer, is_first, fields, others, left, seen, at, cost = {}, {}, {}, {}, {}, {}, 0, 0
  for slot = 0, b.size - 1 do
    local key = keys[slot + 1]
    if key then
      at = at + 1
      local text = texts[at]
      if text and longer[text] == nil then longer[text] = with_mark(text, n, b) end
      if of[key] or seen[key] or (text and not longer[text]) then
        others[slot], left[#left + 1] = key, key
        cost = cost + front_cost(text or '')
      else
        seen[key], is_first[slot] = true, not text
        fields[#fields + 1] = key
        fields[#fields + 1] = text and longer[text] or mark
      end
    elseif key == false then
      is_first[slot] = true
    end
  end
  many('HSET', KEY.fronts .. b.topic, fields)
  return is_first, others, left, cost
end

-- Put messages of a block in front of their keys where they come before the present front. Note for each slot whether
-- it is in front; return the others.
local function put_in_front(n, b, keys, is_first, entry_at)
  local of, new, head = fronts[b.topic], new_fronts_of(b.topic), line.head(b.priority)
  local behind, mixed = {}, {}
  for slot = 0, b.size - 1 do
    local key = keys[slot]
    if key then
      local front = of[key]
      local before = line.is(front) and comes_before(b.topic, n, b.due, front, mixed)
      if before or front == '' then
        if #front >= 6 + 13 * LIMITS.lined then front = cut_line(b.topic, key) end
        of[key] = before and front:sub(1, 6) .. entry_at(slot) .. front:sub(7) or head .. entry_at(slot)
        new[key], is_first[slot] = true, true
      else
        behind[#behind + 1] = slot
        is_first[slot] = false
      end
    end
  end
  return behind
end

-- Make a block that has become ready available, or park it. Return the cost, in units of one loose message.
function line_up_block(n, text, b)
  local is_first, keys, left, cost = mark_fronts(n, b, keys_in(text, b))
  if #left > 0 then
    learn_fronts(b.topic, left)
    local entry_at = entries_of(n, b)
    local behind = put_in_front(n, b, keys, is_first, entry_at)
    for i = 1, #behind do wait_behind(b, keys[behind[i]], entry_at(behind[i])) end
  end
  place_block(n, b, is_first)
  return b.live / 20 + cost
end

-- Remove the mark of a block from the fronts of some of its keys, and schedule the next message of these keys. Return
-- the keys by slot whose fronts do not start with it, a list of these, and how many other blocks are affected for the
-- first time.
local function unmark_fronts(n, b, keys, names)
  local texts, of, own = look_up('HMGET', KEY.fronts .. b.topic, names), fronts[b.topic] or {}, member(n)
  local shorter, gone, fields, others, left, at, blocks = {}, {}, {}, {}, {}, 0, 0
  for slot = 0, b.size - 1 do
    local key = keys[slot + 1]
    if key then
      at = at + 1
      local text = texts[at]
      if text and shorter[text] == nil then
        shorter[text] = line.is_marks(text) and text:sub(1, 7) == own and text:sub(8)
      end
      local rest = text and not of[key] and shorter[text]
      if rest == 'b' then
        gone[#gone + 1] = key
      elseif rest then
        fields[#fields + 1] = key
        fields[#fields + 1] = rest
        if let_stand(b.topic, key, (unpack_from('>I7', rest))) then blocks = blocks + 1 end
      else
        others[slot], left[#left + 1] = key, key
      end
    end
  end
  many('HDEL', KEY.fronts .. b.topic, gone)
  many('HSET', KEY.fronts .. b.topic, fields)
  return others, left, blocks
end

-- Note that a message of a key, whose front was read, is acked. Return the cost of the work left for the end of the
-- call, in units of one loose message.
function leave_line(topic, key, n)
  local front = fronts[topic][key]
  if not line.is(front) or line.number(front) ~= n then
    mark_key(topic, key)
    return 1
  end
  if #front > 19 then
    write_fronts(topic, key, front:sub(1, 6) .. front:sub(20))
    return let_stand(topic, key) and TO_STAND or 0
  end
  write_fronts(topic, key, '')
  if not line.has_others(front) then return 0 end
  mark_key(topic, key)
  return 1
end

-- Note that messages of a leased block are acked, those of some slots or all, with keys from keys_at. Return the cost
-- of the work left for the end of the call, in units of one loose message.
function leave_fronts(n, b, slots, keys, names)
  local topic, left, number = b.topic, nil, nil
  if slots then
    local all = keys
    keys, names = {}, {}
    for slot = 1, b.size do
      local key = slots[slot - 1] and all[slot] or nil
      keys[slot], names[#names + 1] = key, key
    end
  end
  keys, left, number = unmark_fronts(n, b, keys, names)
  number = TO_STAND * number + #names / 32
  if #left == 0 then return number end
  learn_fronts(topic, left)
  for slot = 0, b.size - 1 do
    local key = keys[slot]
    if key then
      ended[n + slot] = true
      number = number + leave_line(topic, key, n + slot)
    end
  end
  return number + #left / 10
end

-- Make the first of a line available, if it is no longer in its block.
local function stand_loose(topic, key, n)
  local front = fronts[topic] and fronts[topic][key] or ''
  local score = line.is(front) and line.number(front) == n and call('ZSCORE', KEY.ready .. topic, line.first(front))
  if not score then return mark_key(topic, key) end
  if tonumber(score) < PARKED then return end
  call('ZADD', KEY.ready .. topic, score - PARKED, line.first(front))
  wake(topic, 1)
end

-- Make messages available that are no longer in their block; return how many are in it, with a mark or a known slot.
local function stand_others(n, b, some)
  local number, index = #some.names, next(some.keys) and b and index_at(n, b) or {}
  for slot, key in pairs(some.keys) do
    if index[3 * slot + 1] == 0 then number = number + 1 else stand_loose(some.topic, key, n + slot) end
  end
  if b then return number end
  for i = 1, #some.names do mark_key(some.topic, some.names[i]) end
  return 0
end

-- Make the next messages of their keys available, in their block or without it.
function stand_next()
  local all = next_ones
  next_ones = {}
  for n, some in pairs(all) do
    local b = head_at(n)
    b = b and b.topic == some.topic and b.state == STATE.waiting and b or nil
    local number = stand_others(n, b, some)
    wake(some.topic, number)
    if number > 0 and not stands(n, b) then
      stand_block(n, b, true)
      set_mixed(n, b, number < b.live)
    end
  end
end

-- Return for each slot of a mixed block whether its message is the first of its key; and the cost.
local function firsts_of(n, b)
  local keys, names = keys_at(n, b)
  local texts, of, own, entry_at = look_up('HMGET', KEY.fronts .. b.topic, names), fronts[b.topic] or {}, member(n), entries_of(n, b)
  local is_first, left, at, cost = {}, {}, 0, 2
  for slot = 0, b.size - 1 do
    local key = keys[slot + 1]
    if key then
      at = at + 1
      if texts[at] and not of[key] and line.is_marks(texts[at]) then
        is_first[slot] = texts[at]:sub(1, 7) == own
        if not is_first[slot] then cost = cost + front_cost(texts[at]) end
      else
        left[#left + 1] = key
        is_first[slot] = key
      end
    elseif key == false then
      is_first[slot] = true
    end
  end
  learn_fronts(b.topic, left)
  of = fronts[b.topic]
  for slot, is in pairs(is_first) do
    if type(is) == 'string' then is_first[slot] = line.is(of[is]) and line.first(of[is]) == entry_at(slot) end
  end
  return is_first, cost
end

-- Sort out a mixed block that comes to be taken: messages that are not the first of their keys become loose. If these
-- are the majority, all become loose; if they are all of it, the block is parked. Return the result, 'stands', 'loose'
-- or 'parked'; and the cost, in units of one loose message.
function unmix(n, b)
  local is_first, cost = firsts_of(n, b)
  local others, number = {}, 0
  for slot, is in pairs(is_first) do
    if not is then number, others[slot] = number + 1, true end
  end
  if number == b.live then
    stand_block(n, b, false)
    set_mixed(n, b, false)
    return 'parked', cost
  end
  local is_loose = number > b.live / 2
  if number > 0 then explode(n, call('GET', block_key(n)), b, not is_loose and others or nil) end
  return is_loose and 'loose' or 'stands', cost + (is_loose and b.live or number) / 2
end
end
