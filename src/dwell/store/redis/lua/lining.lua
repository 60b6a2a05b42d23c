-- Lining up: whole blocks of ordered topics, whose messages are due together. Such a block stands among what
-- may be taken when each of its messages is the front of its key, and is parked when each is in its lane,
-- behind others; where a block is of both kinds, the fewer of its messages become loose ones.
-- Only what others need is known outside of this file: Lua has room for so many names.
local is_lined, keys_in, line_up_block, leave_fronts
do
-- Tell whether a block may stand, or be parked, as a whole; all of its topic has to be of one priority.
function is_lined(b)
  return may_be_lined(b.topic) and b.attempt == 0 and b.due == b.last
    and call('HGET', KEY.known, b.topic) == tostring(b.priority)
end

-- Return the keys of a block by slot, false where there is none, nil where a message is gone; and all keys.
function keys_in(text, b)
  local index, data = b.live < b.size and index_of(text, b), numbers_at(text, b.size, BLOCK.data, b.names)
  local start, keys, names = b.names + BLOCK.data_size * b.size, {}, {}
  for slot = 0, b.size - 1 do
    if not index or index[3 * slot + 1] == 0 then
      local key = key_of(text, start, data[2 * slot + 2])
      keys[slot] = key or false
      names[#names + 1] = key
    end
    start = data[2 * slot + 1]
  end
  return keys, names
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
-- loose. `is_first` says for each slot whether its message is the first of its key.
local function stand_block(n, b, is_first)
  local number, others = 0, 0
  for _, is in pairs(is_first) do
    if is then number = number + 1 else others = others + 1 end
  end
  if number + others == 0 then return end
  wake(b.topic, number)
  local will_stand = number >= others
  call('ZADD', KEY.ready .. b.topic, will_stand and b.priority or PARKED + b.priority, (block_entry(n, b)))
  if number == 0 or others == 0 then return end
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

-- Let a message of a block wait behind others of its key: in their line, if it is to join that, or in the lane.
local function wait_behind(b, key, entry, joins)
  local front = fronts[b.topic][key]
  local longer = joins and line.is(front) and line.joined(front, entry)
  if longer then return write_fronts(b.topic, key, longer) end
  if line.is(front) then cut_line(b.topic, key) end
  call('ZADD', lane_key(b.topic, key), b.priority, entry)
  note_others(b.topic, key)
  -- One that comes before the loose message that stands is to stand itself.
  if front == LOOSE_FRONT and call('ZRANK', lane_key(b.topic, key), entry) == 0 then mark_key(b.topic, key) end
end

-- Tell whether a block comes before the first of a line, which stands: 'place' if it takes the place of that, as
-- is noted by its block and slot, and 'early' if too many other blocks have to give way already.
local function comes_before(n, due, front, others)
  local its_due, m = unpack_from('>I6I7', front, 7)
  if its_due < due or (its_due == due and m < n) then return false end
  local first = m - m % 64
  if others[first] == nil then
    if not stands(first, head_at(first)) then return false end
    if size_of(others) >= LIMITS.giving then return 'early' end
    others[first] = {}
  end
  others[first][m % 64] = true
  return 'place'
end

-- Let those messages of a block that are the first of their keys be in front of them. Return for each slot
-- whether it is so, which are not, by block and slot in whose places they are, and which slots come too early.
local function put_in_front(n, b, keys, entry_at)
  local of, new, head = fronts[b.topic], new_fronts_of(b.topic), line.head(b.priority)
  local is_first, behind, others, early = {}, {}, {}, {}
  for slot = 0, b.size - 1 do
    local key = keys[slot]
    if key then
      local front = of[key]
      local before = line.is(front) and comes_before(n, b.due, front, others)
      if before == 'early' then
        early[slot] = true
      elseif before or front == '' then
        of[key] = before and front:sub(1, 6) .. entry_at(slot) .. front:sub(7) or head .. entry_at(slot)
        new[key], is_first[slot] = true, true
      else
        behind[#behind + 1] = slot
        is_first[slot] = false
      end
    elseif key == false then
      is_first[slot] = true
    end
  end
  return is_first, behind, others, early
end

-- Let a block that has become ready stand, or be parked.
function line_up_block(n, text, b)
  local keys, names = keys_in(text, b)
  learn_fronts(b.topic, names)
  local entry_at = entries_of(n, b)
  local is_first, behind, others, early = put_in_front(n, b, keys, entry_at)
  for other, slots in pairs(others) do give_way(other, slots) end
  call('ZADD', KEY.ready .. b.topic, PARKED + b.priority, (block_entry(n, b)))
  if next(early) then
    wake(b.topic, size_of(early))
    explode(n, text, b, early)
  end
  -- What becomes loose is not worth a place in a line.
  local joins = 2 * #behind >= b.live
  for i = 1, #behind do wait_behind(b, keys[behind[i]], entry_at(behind[i]), joins) end
  stand_block(n, b, is_first)
end

-- Note that messages of a leased block are acked, those of some slots or all. Return what is to be done for it at
-- the end of the call, of which a loose message costs 1.
function leave_fronts(n, text, b, slots)
  local topic = b.topic
  local keys, names = keys_in(text, b)
  learn_fronts(topic, names)
  local of, new, entry_at, number = fronts[topic], new_fronts_of(topic), entries_of(n, b), 0
  for slot = 0, b.size - 1 do
    local key = (not slots or slots[slot]) and keys[slot]
    if key then
      local front = of[key]
      ended[n + slot] = true
      if not line.is(front) or line.first(front) ~= entry_at(slot) then
        mark_key(topic, key)
        number = number + 1
      elseif #front > 19 then
        of[key], new[key] = front:sub(1, 6) .. front:sub(20), true
        -- To make one message of a block loose costs as much as three that are.
        if let_stand(topic, key) then number = number + 3 end
      else
        of[key], new[key] = '', true
        if line.has_others(front) then
          mark_key(topic, key)
          number = number + 1
        end
      end
    end
  end
  return number
end

-- Let those that are next of their keys stand, in their block where that is parked.
function stand_next()
  local all = next_ones
  next_ones = {}
  for n, some in pairs(all) do
    local b, is_first = head_at(n), {}
    if b and b.topic == some.topic and is_parked(n, b) then
      for slot in pairs(live_slots(n, b)) do is_first[slot] = some.keys[slot] ~= nil end
      stand_block(n, b, is_first)
    end
    for slot, key in pairs(some.keys) do
      if is_first[slot] == nil then mark_key(some.topic, key) end
    end
  end
end
end
