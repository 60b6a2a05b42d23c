-- The keys of the messages of a block, and the lines that are stored as marks of blocks.
local keys_in, keys_at
do
-- Return keys by slot from 1 on, if they are stored behind the bodies.
local function listed_keys(text, b)
  local keys = numbers_at(text, b.size, 'Bc0', 0)
  -- The last result of unpack is the end position.
  keys[b.size + 1] = nil
  return keys
end

-- Return the same from the extras, false for a message without a key.
local function read_keys(text, b)
  local keys, data = {}, numbers_at(text, b.size, BLOCK.data, b.names)
  local start = b.names + BLOCK.data_size * b.size
  for slot = 1, b.size do
    keys[slot] = key_of(text, start, data[2 * slot]) or false
    start = data[2 * slot - 1]
  end
  return keys
end

-- Return keys by slot, nil for a message that is gone, and a list of all the others.
local function with_names(keys, b, index)
  local names = {}
  for slot = 1, b.size do
    if index and index[3 * slot - 2] == 1 then keys[slot] = nil end
    names[#names + 1] = keys[slot] or nil
  end
  return keys, names
end

-- Return the keys of a block by slot from 1 on, false for a message without a key, nil for a message that is gone; and
-- a list of all keys.
function keys_in(text, b)
  local index, last = b.live < b.size and index_of(text, b), bodies_end(text, b)
  return with_names(#text > last and listed_keys(text:sub(last + 1), b) or read_keys(text, b), b, index)
end

-- Return the text of the keys of a block, '' if they are stored only in the extras.
local function keys_text(n, b)
  local at = b.names + BLOCK.data_size * (b.size - 1)
  local last = unpack_from('>I4', call('GETRANGE', block_key(n), at, at + 3))
  return call('GETRANGE', block_key(n), last, -1)
end

-- Return the same as keys_in, without reading bodies if possible.
function keys_at(n, b)
  local text = keys_text(n, b)
  if text == '' then return keys_in(call('GET', block_key(n)), b) end
  return with_names(listed_keys(text, b), b, b.live < b.size and index_at(n, b))
end

-- The cached data of a block that fronts have marks of; false if the topic has no such block.
local function marked_block(n, topic)
  local b = head_at(n)
  return b and b.topic == topic and {head = b, text = keys_text(n, b)} or false
end

-- Return the slots of a block from 1 on by key.
local function slots_at(n, b)
  local keys, slots = keys_at(n, b), {}
  for slot = b.size, 1, -1 do slots[keys[slot] or false] = slot end
  return slots
end

-- Return the slot of a key among the keys of a block, from 1 on; nil if it is missing.
local function listed_slot(text, key)
  local name, from, at, slot = string.char(#key) .. key, 1, 1, 1
  while true do
    local found = text:find(name, from, true)
    if not found then return nil end
    while at < found do at, slot = at + 1 + text:byte(at), slot + 1 end
    if at == found then return slot end
    from = found + 1
  end
end

-- Return the slot of a key in a block, from 1 on, and the block's head; nil when the message is gone. Searching the
-- text is quickest for one key, a table for many.
local function slot_of(topic, key, n)
  if of_marks[n] == nil then of_marks[n] = marked_block(n, topic) end
  local of = of_marks[n]
  if not of then return nil end
  local b, slot = of.head, nil
  if of.slots or of.is_known or of.text == '' then
    of.slots = of.slots or slots_at(n, b)
    return of.slots[key], b
  end
  of.is_known, slot = true, listed_slot(of.text, key)
  if slot and b.live < b.size and is_gone(n, b, slot - 1) then slot = nil end
  return slot, b
end

-- Return the line of a key whose front consists of marks; '' when its messages are gone.
function line.spelled_out(topic, key, text)
  local spelled = ''
  for at = 1, #text - 1, 7 do
    local n = unpack_from('>I7', text, at)
    local slot, b = slot_of(topic, key, n)
    if slot then
      spelled = (spelled == '' and line.head(b.priority) or spelled) .. ready_member(n + slot - 1, b.due)
    end
  end
  return spelled
end
end
