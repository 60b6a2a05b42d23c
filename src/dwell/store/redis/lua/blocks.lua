-- Blocks: a head as in BLOCK, the topic, BLOCK.slot for each slot and all ids (together its names); then BLOCK.data for
-- each slot, and extra and body of each; and last, in an ordered topic, the key of each, preceded by its size in one
-- byte, if all keys are short. Lua hashes every byte of a string that it receives, so only the needed parts of a block
-- are read.
local function block_key(n) return KEY.block .. floor(n / 64) end

-- Return the head of a block, from its text or at least the first 240 bytes of it.
local function head_of(text)
  local b = {}
  local t
  b.state, b.size, b.live, b.flags, b.attempt, b.take, b.ends, b.priority, b.lease, b.most,
    b.due, b.last, b.names, t = unpack_from(BLOCK.all, text)
  b.topic = text:sub(BLOCK.size + 1, BLOCK.size + t)
  b.own_ids, b.is_owned, b.is_mixed = b.flags % 2 == 1, floor(b.flags / 2) % 2 == 1, b.flags >= 4
  b.index = BLOCK.size + t
  return b
end

local function head_at(n)
  local text = call('GETRANGE', block_key(n), 0, 240)
  return #text > 0 and head_of(text) or nil
end

-- Overwrite a part of a block: its number of live messages, the mark of a gone message, the lease.
local function set_live(n, live) call('SETRANGE', block_key(n), BLOCK.live_at, string.char(live)) end
local function set_gone(n, b, slot) call('SETRANGE', block_key(n), b.index + BLOCK.slot_size * slot, '\1') end
local function is_gone(n, b, slot)
  local at = b.index + BLOCK.slot_size * slot
  return slot >= b.size or call('GETRANGE', block_key(n), at, at) == '\1'
end
-- Note whether a block is available although some of its messages are not the first of their keys.
local function set_mixed(n, b, is_mixed)
  if b.is_mixed == is_mixed then return end
  b.is_mixed, b.flags = is_mixed, b.flags % 4 + (is_mixed and 4 or 0)
  call('SETRANGE', block_key(n), BLOCK.flags_at, string.char(b.flags))
end
local function set_lease(n, b, state, flags, attempt, take, ends)
  call('SETRANGE', block_key(n), 0, pack(BLOCK.lease, state, b.size, b.live, flags, attempt, take, ends))
end

-- Return the owner of a block; a block flagged as owned has its owner in a hash.
local function owner_of(n, b) return b.is_owned and call('HGET', KEY.owners, member(n)) or '' end

local function own_block(n, owner)
  call('HSET', KEY.owners, member(n), owner)
  call('SADD', KEY.owner .. owner, member(n) .. 'b')
end

-- Return the names of a block, without extras and bodies.
local function names_at(n, b) return call('GETRANGE', block_key(n), 0, b.names - 1) end

-- Return numbers for each slot, stored in sequence from a place on.
local FORMATS = {}
local function numbers_at(text, size, form, at)
  local name = form .. size
  FORMATS[name] = FORMATS[name] or '>' .. string.rep(form, size)
  return {unpack_from(FORMATS[name], text, at + 1)}
end

-- Return the end offset of the bodies of a block.
local function bodies_end(text, b)
  return (unpack_from('>' .. BLOCK.data, text, b.names + BLOCK.data_size * (b.size - 1) + 1))
end

-- For each slot: 1 when it is gone, due, and the end of its id.
local function index_of(text, b) return numbers_at(text, b.size, BLOCK.slot, b.index) end

-- Return the same, reading only that part.
local function index_at(n, b)
  local text = call('GETRANGE', block_key(n), b.index, b.index + BLOCK.slot_size * b.size - 1)
  return numbers_at(text, b.size, BLOCK.slot, 0)
end

local function made_id(n) return string.format('~%x', n * 256 + SHARD) end

-- Return the numbers of a block's messages in the form of `ids`: they differ only in the last byte.
local function numbers_of(n, size)
  local names, first, low = {}, pack('>I6', n):sub(1, 5), n % 256
  for slot = 0, size - 1 do names[slot + 1] = first .. string.char(low + slot) end
  return names
end

-- Return the ids of all slots, gone or not.
local function ids_of(text, b, n)
  local ids = {}
  if not b.own_ids then
    for slot = 0, b.size - 1 do ids[slot + 1] = made_id(n + slot) end
    return ids
  end
  local index, start = index_of(text, b), b.index + BLOCK.slot_size * b.size
  for slot = 1, b.size do
    local last = index[3 * slot]
    ids[slot] = text:sub(start + 1, last)
    start = last
  end
  return ids
end

-- Return the messages of a block in the form of loose messages, by slot, all or only some; messages that are gone are
-- left out.
local function unpacked(text, b, n, only)
  local index, id_start = index_of(text, b), b.index + BLOCK.slot_size * b.size
  local data, start = numbers_at(text, b.size, BLOCK.data, b.names), b.names + BLOCK.data_size * b.size
  local found, owner = {}, owner_of(n, b)
  for slot = 0, b.size - 1 do
    local gone, due, id_end = index[3 * slot + 1], index[3 * slot + 2], index[3 * slot + 3]
    local last, extra = data[2 * slot + 1], data[2 * slot + 2]
    if gone == 0 and (not only or only[slot]) then
      found[slot] = {
        state = b.state, attempt = b.attempt, take = b.take, ends = b.ends, due = due,
        priority = b.priority, expires = 0, lease = b.lease, most = b.most, topic = b.topic, owner = owner,
        id = id_end > id_start and text:sub(id_start + 1, id_end) or made_id(n + slot),
        extra = text:sub(start + 1, start + extra), body = text:sub(start + extra + 1, last),
      }
    end
    id_start, start = id_end, last
  end
  return found
end

local function block_entry(n, b)
  return ready_member(n, b.due) .. 'b', delayed_member(n, b.priority) .. 'b'
end

-- Take a block out of the set of its state; tell whether it was ready.
local function lift_block(n, b)
  if b.state == STATE.leased then
    call('ZREM', KEY.leased, member(n) .. 'b')
    if b.is_owned then
      call('SREM', KEY.owner .. owner_of(n, b), member(n) .. 'b')
      call('HDEL', KEY.owners, member(n))
    end
    return false
  end
  local ready, delayed = block_entry(n, b)
  if call('ZREM', KEY.delayed .. b.topic, delayed) == 1 then return false end
  call('ZREM', KEY.ready .. b.topic, ready)
  return true
end

-- Delete a block; its place is kept while its first message exists as a loose message.
local function drop_block(n)
  call('DEL', block_key(n))
  if call('HEXISTS', KEY.messages, member(n)) == 0 then leave({n}) end
end

local function is_ready(n, b)
  return b.state == STATE.waiting and call('ZSCORE', KEY.ready .. b.topic, (block_entry(n, b)))
end

-- Mark `number` messages of a block as gone, and delete the block with its last message.
local function take_all_out(n, b, slots, number)
  if b.live == number then
    lift_block(n, b)
    return drop_block(n)
  end
  set_live(n, b.live - number)
  for slot in pairs(slots) do set_gone(n, b, slot) end
end

-- Do so for one message.
local function take_out(n, b) take_all_out(n - n % 64, b, {[n % 64] = true}, 1) end

-- Turn the messages of a block into loose messages in the same state; all, or those of some slots; return their
-- numbers.
local function explode(n, text, b, only)
  local messages = unpacked(text, b, n, only)
  local was_ready
  learn_fronts_of(messages, b)
  if only then
    local number = 0
    for _ in pairs(messages) do number = number + 1 end
    was_ready = is_ready(n, b)
    -- Others may have been taken out since the caller read the block.
    take_all_out(n, head_at(n), only, number)
  else
    was_ready = lift_block(n, b)
    drop_block(n)
  end
  local fields, ready, delayed, leases, places = {}, {}, {}, {}, {}
  for slot = 0, b.size - 1 do
    local r = messages[slot]
    if r then
      local m = n + slot
      fields[#fields + 1] = member(m)
      fields[#fields + 1] = encode(r)
      places[#places + 1] = m
      if b.state == STATE.leased then
        leases[#leases + 1] = b.ends
        leases[#leases + 1] = member(m)
        if r.owner ~= '' then call('SADD', KEY.owner .. r.owner, member(m)) end
      elseif was_ready or r.due <= now then
        local entry = ready_member(m, r.due)
        ready[#ready + 1] = enter_ready(r, entry)
        ready[#ready + 1] = entry
      else
        delayed[#delayed + 1] = r.due
        delayed[#delayed + 1] = delayed_member(m, b.priority)
      end
    end
  end
  if #places == 0 then return places end
  enter(places)
  many('HSET', KEY.messages, fields)
  many('ZADD', KEY.leased, leases)
  many('ZADD', KEY.delayed .. b.topic, delayed)
  many('ZADD', KEY.ready .. b.topic, ready)
  if not was_ready and #ready > 0 then
    count(b.topic, 'delayed', -#ready / 2)
    count(b.topic, 'ready', #ready / 2)
    wake(b.topic, #ready / 2)
  end
  return places
end

-- Add to a message of a block its data.
local function with_data(n, r, b)
  local start, slot = b.names + BLOCK.data_size * b.size, n % 64
  local at = b.names + BLOCK.data_size * slot
  if slot > 0 then start = unpack_from('>I4', call('GETRANGE', block_key(n), at - BLOCK.data_size, at - BLOCK.data_size + 3)) end
  local last, extra = unpack_from('>' .. BLOCK.data, call('GETRANGE', block_key(n), at, at + BLOCK.data_size - 1))
  local data = last > start and call('GETRANGE', block_key(n), start, last - 1) or ''
  r.extra, r.body = data:sub(1, extra), data:sub(extra + 1)
  return r
end

-- Return one message of a block, and the block's head; nil when it is missing. Without its data it is marked as packed:
-- code that changes it must take it out first.
local function packed(n, names_only)
  local b = head_at(n)
  local slot = n % 64
  if not b or slot >= b.size then return nil end
  local at = b.index + BLOCK.slot_size * slot
  local gone, due, id_end = unpack_from('>' .. BLOCK.slot, call('GETRANGE', block_key(n), at, at + BLOCK.slot_size - 1))
  if gone == 1 then return nil end
  local id_start = b.index + BLOCK.slot_size * b.size
  if slot > 0 then id_start = unpack_from('>I2', call('GETRANGE', block_key(n), at - 2, at - 1)) end
  local r = {
    state = b.state, attempt = b.attempt, take = b.take, ends = b.ends, due = due, is_packed = names_only,
    priority = b.priority, expires = 0, lease = b.lease, most = b.most, topic = b.topic,
    owner = owner_of(n - slot, b),
    id = id_end > id_start and call('GETRANGE', block_key(n), id_start, id_end - 1) or made_id(n),
  }
  if names_only then
    r.block = b
    return r, b
  end
  return with_data(n, r, b), b
end

-- Return the text of a message, in the form of a loose message, for readers, which do not change a block.
local function read(n)
  local text = call('HGET', KEY.messages, member(n))
  if text then return text end
  local r = packed(n)
  return r and encode(r) or false
end

-- Turn one message of a block into a loose message in the same state; nil when it is missing.
local function extract(n)
  local slot = n % 64
  local first = n - slot
  local r, b = packed(n)
  if not r then return nil end
  local was_ready = is_ready(first, b)
  learn_fronts_of({r}, b)
  take_out(n, b)
  enter({n})
  save(n, r)
  touched[b.topic] = true
  if b.state == STATE.leased then
    call('ZADD', KEY.leased, r.ends, member(n))
    if r.owner ~= '' then call('SADD', KEY.owner .. r.owner, member(n)) end
  elseif was_ready or r.due <= now then
    stand_ready(r, ready_member(n, r.due))
    if not was_ready then
      count(b.topic, 'delayed', -1)
      count(b.topic, 'ready', 1)
      wake(b.topic, 1)
    end
  else
    call('ZADD', KEY.delayed .. b.topic, r.due, delayed_member(n, r.priority))
  end
  return r
end
