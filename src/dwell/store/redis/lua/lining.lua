-- Lining up: whole blocks of ordered topics, whose messages are due together. Such a block stands among what
-- may be taken when each of its messages is the first of its line, and is parked when each is behind others, there or in
-- its lane; where a block is of both kinds, the fewer of its messages become loose ones.
-- Only what others need is known outside of this file: Lua has room for so many names.
local is_lined, line_up_block, leave_line, leave_fronts
do
-- Tell whether a block may stand, or be parked, as a whole; all of its topic has to be of one priority.
function is_lined(b)
  return may_be_lined(b.topic) and b.attempt == 0 and b.due == b.last
    and call('HGET', KEY.known, b.topic) == tostring(b.priority)
end

-- Return what gives the entry of a message by its slot, for a block of one due.
local function entries_of(n, b)
  local before, low = ready_member(n, b.due):sub(1, 12), n % 256
  return function(slot) return before .. string.char(low + slot) end
end

-- Tell whether a ready block is parked, and whether it stands among what may be taken.
local function is_parked(n, b)
  local score = is_ready(n, b)
  return score and tonumber(score) >= PARKED
end
local function stands(n, b) return b and is_ready(n, b) and not is_parked(n, b) end

local function size_of(of)
  local size = 0
  for _ in pairs(of) do size = size + 1 end
  return size
end

-- Let a block that is among the ready stand, or be parked, and make the fewer of both kinds of its messages
-- loose. `is_first` says for each slot whether its message is the first of its key. Return how many became loose.
local function stand_block(n, b, is_first)
  local number, others = 0, 0
  for _, is in pairs(is_first) do
    if is then number = number + 1 else others = others + 1 end
  end
  if number + others == 0 then return 0 end
  wake(b.topic, number)
  local will_stand = number >= others
  call('ZADD', KEY.ready .. b.topic, will_stand and b.priority or PARKED + b.priority, (block_entry(n, b)))
  if number == 0 or others == 0 then return 0 end
  local only, parked, entry_at = {}, {}, entries_of(n, b)
  for slot, is in pairs(is_first) do
    if is ~= will_stand then
      only[slot] = true
      parked[#parked + 1] = PARKED + b.priority
      parked[#parked + 1] = entry_at(slot)
    end
  end
  explode(n, call('GET', block_key(n)), b, only)
  if will_stand then many('ZADD', KEY.ready .. b.topic, parked) end
  return math.min(number, others)
end

-- Return the slots of a block of which nothing is gone.
local function live_slots(n, b)
  local live, index = {}, b.live < b.size and index_at(n, b)
  for slot = 0, b.size - 1 do
    if not index or index[3 * slot + 1] == 0 then live[slot] = true end
  end
  return live
end

-- Let messages of a block that stands give up their places; it has those of some slots.
local function give_way(n, slots)
  local b, is_first = head_at(n), {}
  for slot in pairs(live_slots(n, b)) do is_first[slot] = not slots[slot] end
  stand_block(n, b, is_first)
end

-- Let a message of a block wait behind others of its key: in their line, or else in the lane.
local function wait_behind(b, key, entry)
  local front = fronts[b.topic][key]
  local longer = line.is(front) and line.joined(front, entry)
  if longer then return write_fronts(b.topic, key, longer) end
  if line.is(front) then cut_line(b.topic, key) end
  call('ZADD', lane_key(b.topic, key), b.priority, entry)
  note_others(b.topic, key)
end

-- Tell whether a block comes before the first of a line, which stands: 'place' if it takes the place of that, as
-- is noted by its block and slot, and 'early' if too many other blocks have to give way already.
local function comes_before(topic, n, due, front, others)
  local its_due, m = unpack_from('>I6I7', front, 7)
  if its_due < due or (its_due == due and m < n) then return false end
  local score = tonumber(call('ZSCORE', KEY.ready .. topic, line.first(front)) or nil)
  if score then
    if score < PARKED then call('ZADD', KEY.ready .. topic, PARKED + score, line.first(front)) end
    return 'place'
  end
  local first = m - m % 64
  if others[first] == nil then
    if not stands(first, head_at(first)) then return false end
    if size_of(others) >= LIMITS.giving then return 'early' end
    others[first] = {}
  end
  others[first][m % 64] = true
  return 'place'
end

-- Return the marks of a front with that of a block at the end; false when it does not belong there.
local function with_mark(text, n, b)
  if not line.is_marks(text) or #text > 7 * LIMITS.lined then return false end
  local m = unpack_from('>I7', text, #text - 7)
  local last = head_at(m)
  local is_behind = last and (last.due < b.due or (last.due == b.due and m < n))
  return is_behind and last.topic == b.topic and last.priority == b.priority and text:sub(1, -2) .. line.mark(n)
end

-- Let the fronts of a block's keys have its mark, where they have none, or only marks, and it is worth it. Return for
-- each slot whether its message is the first, the keys of those slots that are left to do, a list of these, and what
-- these cost: long lines are long to take apart.
local function mark_fronts(n, b, keys, names)
  local texts, of, mark = look_up('HMGET', KEY.fronts .. b.topic, names), fronts[b.topic] or {}, line.mark(n)
  local longer, is_first, firsts, behind, others, left, seen, at, cost = {}, {}, {}, {}, {}, {}, {}, 0, 0
  for slot = 0, b.size - 1 do
    local key = keys[slot + 1]
    if key then
      at = at + 1
      local text = texts[at]
      if text and longer[text] == nil then longer[text] = with_mark(text, n, b) end
      if of[key] or seen[key] or (text and not longer[text]) then
        others[slot], left[#left + 1] = key, key
        cost = cost + 0.2 + #(text or '') / 250
      else
        local fields = text and behind or firsts
        seen[key], is_first[slot] = true, not text
        fields[#fields + 1] = key
        fields[#fields + 1] = text and longer[text] or mark
      end
    elseif key == false then
      is_first[slot] = true
    end
  end
  many('HSET', KEY.fronts .. b.topic, firsts)
  -- What becomes loose has no use for marks.
  if #behind >= b.live then
    many('HSET', KEY.fronts .. b.topic, behind)
    return is_first, others, left, cost
  end
  for slot, is in pairs(is_first) do
    if not is then
      is_first[slot], others[slot], left[#left + 1] = nil, keys[slot + 1], keys[slot + 1]
      cost = cost + 0.2
    end
  end
  return is_first, others, left, cost
end

-- Let those messages of a block that come before what is in front of their keys be so instead. Note for each slot
-- whether it is so; return which are not, by block and slot in whose places they are, and which slots come too early.
local function put_in_front(n, b, keys, is_first, entry_at)
  local of, new, head = fronts[b.topic], new_fronts_of(b.topic), line.head(b.priority)
  local behind, others, early = {}, {}, {}
  for slot = 0, b.size - 1 do
    local key = keys[slot]
    if key then
      local front = of[key]
      local before = line.is(front) and comes_before(b.topic, n, b.due, front, others)
      if before == 'early' then
        early[slot] = true
      elseif before or front == '' then
        if #front >= 6 + 13 * LIMITS.lined then front = cut_line(b.topic, key) end
        of[key] = before and front:sub(1, 6) .. entry_at(slot) .. front:sub(7) or head .. entry_at(slot)
        new[key], is_first[slot] = true, true
      else
        behind[#behind + 1] = slot
        is_first[slot] = false
      end
    end
  end
  return behind, others, early
end

-- Let a block that has become ready stand, or be parked. Return what that cost, of which a loose message costs 1.
function line_up_block(n, text, b)
  local is_first, keys, left, cost = mark_fronts(n, b, keys_in(text, b))
  if #left == 0 then return b.live / 20 + stand_block(n, b, is_first) end
  learn_fronts(b.topic, left)
  local entry_at = entries_of(n, b)
  local behind, others, early = put_in_front(n, b, keys, is_first, entry_at)
  for other, slots in pairs(others) do give_way(other, slots) end
  call('ZADD', KEY.ready .. b.topic, PARKED + b.priority, (block_entry(n, b)))
  if next(early) then
    wake(b.topic, size_of(early))
    explode(n, text, b, early)
  end
  for i = 1, #behind do wait_behind(b, keys[behind[i]], entry_at(behind[i])) end
  return b.live / 20 + cost + stand_block(n, b, is_first)
end

-- Let the mark of a block leave the fronts of some of its keys, and let the next of these keys stand soon. Return the
-- keys by slot whose fronts do not begin with it, a list of these, and how many other blocks are concerned for the
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

-- Note that a message of a key is acked, whose front was looked up. Return what is to be done for it at the end of the
-- call, of which a loose message costs 1.
function leave_line(topic, key, n)
  local front = fronts[topic][key]
  if not line.is(front) or line.number(front) ~= n then
    mark_key(topic, key)
    return 1
  end
  if #front > 19 then
    write_fronts(topic, key, front:sub(1, 6) .. front:sub(20))
    -- To make one message of a block loose costs as much as three that are.
    return let_stand(topic, key) and 3 or 0
  end
  write_fronts(topic, key, '')
  if not line.has_others(front) then return 0 end
  mark_key(topic, key)
  return 1
end

-- Note that messages of a leased block are acked, those of some slots or all, of whose keys keys_at told. Return what is
-- to be done for it at the end of the call, of which a loose message costs 1.
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
  number = 3 * number + #names / 32
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

-- Let the first of a line stand, which lies in its block no more.
local function stand_loose(topic, key, n)
  local front = fronts[topic] and fronts[topic][key] or ''
  local score = line.is(front) and line.number(front) == n and call('ZSCORE', KEY.ready .. topic, line.first(front))
  if not score then return mark_key(topic, key) end
  if tonumber(score) < PARKED then return end
  call('ZADD', KEY.ready .. topic, score - PARKED, line.first(front))
  wake(topic, 1)
end

-- Let some messages of a block stand, by their keys, and those by their slots of which that is known.
local function stand_some(n, b, some)
  local is_first = {}
  for i = 1, #some.names do
    local slot = slot_of(some.topic, some.names[i], n)
    if slot then some.keys[slot - 1] = some.names[i] else mark_key(some.topic, some.names[i]) end
  end
  if b then
    for slot in pairs(live_slots(n, b)) do is_first[slot] = some.keys[slot] ~= nil end
    stand_block(n, b, is_first)
  end
  for slot, key in pairs(some.keys) do
    if is_first[slot] == nil then stand_loose(some.topic, key, n + slot) end
  end
end

-- Let those that are next of their keys stand, in their block where that is parked.
function stand_next()
  local all = next_ones
  next_ones = {}
  for n, some in pairs(all) do
    local b = head_at(n)
    b = b and b.topic == some.topic and is_parked(n, b) and b or nil
    if b and not next(some.keys) and #some.names == b.live then
      wake(b.topic, b.live)
      call('ZADD', KEY.ready .. b.topic, b.priority, (block_entry(n, b)))
    else
      stand_some(n, b, some)
    end
  end
end
end
