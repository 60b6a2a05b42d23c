-- What every script shares. KEYS[1] names the shard: all keys begin with it and lie in its slot.
-- ARGV: 1 the time in ms, 0 for the server's own; 2 the instance that calls; 3 the shard's index;
-- 4 which of its calls under way this is; 5 the number of the call, which only grows; 6 how many
-- shards there are.
-- What a verb is told comes after these.
--
-- A message is loose, a field of `messages` by its number n; or packed with others of its put in
-- a block, the string `block:<floor(n / 64)>`, where n % 64 is its slot. Members of sorted sets
-- are n in 7 bytes; those that stand for a whole block end with 'b'.
local call, pack, unpack_from, floor = redis.call, struct.pack, struct.unpack, math.floor
local base = KEYS[1]
local now, SHARD, SHARDS = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[6])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

local WAITING, LEASED, DEAD = 1, 3, 4
local MESSAGES, LEASES, TIMERS, META = base .. ':messages', base .. ':leased', base .. ':timers', base .. ':meta'
local DIRS = base .. ':dirs'
local KNOWN = base .. ':known'
-- How much one call may do that time alone asks for.
local BUDGET = LIMITS.budget

local function key(name, topic) return base .. ':' .. name .. ':' .. topic end

-- Call a command with many arguments in parts that fit Lua's stack; parts hold whole pairs.
local function many(command, name, values)
  local most = LIMITS.arguments
  for at = 1, #values, most do call(command, name, unpack(values, at, math.min(at + most - 1, #values))) end
end

local function look_up(command, name, fields)
  local most = LIMITS.arguments
  if #fields <= most then return call(command, name, unpack(fields)) end
  local found = {}
  for at = 1, #fields, most do
    local part = call(command, name, unpack(fields, at, math.min(at + most - 1, #fields)))
    for i = 1, #part do found[at + i - 1] = part[i] end
  end
  return found
end

local known = {}
local function settings(topic)
  if not known[topic] then
    local text = call('HGET', base .. ':topics', topic)
    known[topic] = text and cmsgpack.unpack(text) or DEFAULTS
  end
  return known[topic]
end

-- Return when a lease ends that is so long as its taker says, or else its message, or its topic.
local function lease_end(asked_ms, own_ms, topic)
  return now + (asked_ms > 0 and asked_ms or own_ms > 0 and own_ms or settings(topic).lease_ms)
end

-- What the call changed, written down once at its end.
local touched, counts, woken, totals, log, happened = {}, {}, {}, {}, {}, 0

local function count(topic, state, delta)
  local of = counts[topic]
  if not of then of = {}; counts[topic] = of end
  of[state] = (of[state] or 0) + delta
  touched[topic] = true
end

local function wake(topic, number)
  if number > 0 and not settings(topic).paused then woken[topic] = (woken[topic] or 0) + number end
end

local function add_total(kind, number)
  totals[kind] = (totals[kind] or 0) + number
  happened = happened + number
end

-- Write down what happened to one message, and to all of a block.
local function note(kind, topic, id, due, attempt)
  add_total(kind, 1)
  log[#log + 1] = pack('>BBBI6I2I2', 0, kind, #topic, due, attempt, #id) .. topic .. id
end

local function note_block(kind, n, block, attempt, names)
  if block.live == 0 then return end
  add_total(kind, block.live)
  if #names > block.names then names = names:sub(1, block.names) end
  log[#log + 1] = pack('>BBI7I2I2I4', 1, kind, n, attempt, block.live, #names)
  log[#log + 1] = names
end

-- Places: which numbers are there, 512 in a set of small integers.
local function by_dir(numbers)
  local dirs = {}
  for i = 1, #numbers do
    local dir = floor(numbers[i] / 512)
    local of = dirs[dir]
    if not of then of = {}; dirs[dir] = of end
    of[#of + 1] = numbers[i] % 512
  end
  return dirs
end

local function enter(numbers)
  for dir, of in pairs(by_dir(numbers)) do
    call('SADD', base .. ':dir:' .. dir, unpack(of))
    call('ZADD', DIRS, dir, dir)
  end
end

local function leave(numbers)
  for dir, of in pairs(by_dir(numbers)) do
    call('SREM', base .. ':dir:' .. dir, unpack(of))
    if call('EXISTS', base .. ':dir:' .. dir) == 0 then call('ZREM', DIRS, dir) end
  end
end

local function member(n) return pack('>I7', n) end

-- Loose messages -----------------------------------------------------------------------------
local HEAD = '>BI2I4I6I6I4I6I4I2BI2I2I2I2'

local function encode(r)
  return pack(HEAD, r.state, r.attempt, r.take, r.ends, r.due, r.priority, r.expires, r.lease,
    r.most, #r.topic, #r.id, #r.extra, r.error and #r.error or 65535, #r.owner)
    .. r.topic .. r.id .. r.extra .. (r.error or '') .. r.owner .. r.body
end

local function decode(text)
  local r = {}
  local t, i, x, e, o
  r.state, r.attempt, r.take, r.ends, r.due, r.priority, r.expires, r.lease, r.most, t, i, x, e, o
    = unpack_from(HEAD, text)
  local at = 45
  r.topic = text:sub(at, at + t - 1); at = at + t
  r.id = text:sub(at, at + i - 1); at = at + i
  r.extra = text:sub(at, at + x - 1); at = at + x
  if e ~= 65535 then r.error = text:sub(at, at + e - 1); at = at + e end
  r.owner = text:sub(at, at + o - 1); at = at + o
  r.body = text:sub(at)
  return r
end

local function save(n, r) call('HSET', MESSAGES, member(n), encode(r)) end

local function delayed_member(n, priority) return pack('>I7I4', n, priority) end
local function ready_member(n, due) return pack('>I6I7', due, n) end

-- Let a message wait for its due, or for a taker.
local function wait(n, r)
  if r.due <= now then
    call('ZADD', key('ready', r.topic), r.priority, ready_member(n, r.due))
    count(r.topic, 'ready', 1)
    if r.expires == 0 or r.expires > now then wake(r.topic, 1) end
  else
    call('ZADD', key('delayed', r.topic), r.due, delayed_member(n, r.priority))
    count(r.topic, 'delayed', 1)
  end
  if r.expires > 0 then call('ZADD', key('expiring', r.topic), r.expires, member(n)) end
  r.state = WAITING
end

-- Take a message out of the set of its state; the caller puts it into another, or forgets it.
local function lift(n, r)
  if r.state == WAITING then
    if call('ZREM', key('delayed', r.topic), delayed_member(n, r.priority)) == 1 then
      count(r.topic, 'delayed', -1)
    else
      call('ZREM', key('ready', r.topic), ready_member(n, r.due))
      count(r.topic, 'ready', -1)
    end
    if r.expires > 0 then call('ZREM', key('expiring', r.topic), member(n)) end
  elseif r.state == LEASED then
    call('ZREM', LEASES, member(n))
    if r.owner ~= '' then call('SREM', key('owner', r.owner), member(n)); r.owner = '' end
    r.ends = 0
    count(r.topic, 'leased', -1)
  else
    call('ZREM', key('dead', r.topic), member(n))
    count(r.topic, 'dead', -1)
  end
end

local function bury(n, r, kind)
  call('ZADD', key('dead', r.topic), r.due, member(n))
  r.state = DEAD
  count(r.topic, 'dead', 1)
  note(kind, r.topic, r.id, r.due, r.attempt)
  save(n, r)
end

local function is_made(id) return id:byte(1) == 126 end

-- Ids: a caller's id is a field of `ids`. It has the number of its message in 6 bytes, or, when that was
-- acked, 255 and until when it is remembered. When such an id is used anew, `earlier` keeps that.
local FORGETS = base .. ':forgets'

local function remembered_until(value)
  return value and value:byte(1) == 255 and unpack_from('>I6', value, 2) or nil
end

-- Let go of an id whose message is gone without an ack.
local function free_id(topic, id)
  if is_made(id) then return end
  local ends = call('HGET', key('earlier', topic), id)
  if ends then
    call('HDEL', key('earlier', topic), id)
    if tonumber(ends) > now then return call('HSET', key('ids', topic), id, '\255' .. pack('>I6', ends)) end
  end
  call('HDEL', key('ids', topic), id)
end

-- Remember acked ids, or let go of them when the topic remembers none.
local function remember(topic, names)
  local earlier = call('EXISTS', key('earlier', topic)) == 1 and key('earlier', topic)
  local ends = now + settings(topic).remember_ms
  local fields, old, value = {}, {}, '\255' .. pack('>I6', ends)
  for i = 1, #names do
    local before = earlier and tonumber(call('HGET', earlier, names[i]) or 0) or 0
    if before > 0 then call('HDEL', earlier, names[i]) end
    if math.max(before, ends) <= now then
      old[#old + 1] = names[i]
    else
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = before > ends and '\255' .. pack('>I6', before) or value
    end
  end
  many('HDEL', key('ids', topic), old)
  many('HSET', key('ids', topic), fields)
  local most = LIMITS.forgotten
  for at = 1, #names, most do
    local part = {unpack(names, at, math.min(at + most - 1, #names))}
    part[#part + 1] = topic
    call('ZADD', FORGETS, ends, cmsgpack.pack(part))
  end
  return math.ceil(#names / most)
end

local function forget(n, r)
  call('HDEL', MESSAGES, member(n))
  free_id(r.topic, r.id)
  if n % 64 > 0 or call('EXISTS', base .. ':block:' .. floor(n / 64)) == 0 then leave({n}) end
end

local function is_used_up(attempt, most, topic)
  return attempt >= (most > 0 and most or settings(topic).max_attempts)
end

-- Blocks -------------------------------------------------------------------------------------
-- 43 bytes of head, the topic, 9 bytes for each slot, all ids (these are its names), then 6 bytes
-- for each slot, and extra and body of each slot. Lua hashes every byte of a string that it is given, so that only what a call
-- needs of a block is read.
local BLOCK = '>BBBBI2I4I6I4I4I2I6I6I4B'

local function block_key(n) return base .. ':block:' .. floor(n / 64) end

-- Return the head of a block, from its text or at least the first 240 bytes of it.
local function head_of(text)
  local b = {}
  local t
  b.state, b.size, b.live, b.flags, b.attempt, b.take, b.ends, b.priority, b.lease, b.most,
    b.due, b.last, b.names, t = unpack_from(BLOCK, text)
  b.topic = text:sub(44, 43 + t)
  b.own_ids, b.is_owned = b.flags % 2 == 1, b.flags >= 2
  b.index = 43 + t
  return b
end

local function head_at(n)
  local text = call('GETRANGE', block_key(n), 0, 240)
  return #text > 0 and head_of(text) or nil
end

-- Who holds a block; a block whose flags say that it is owned has its owner in a hash.
local OWNERS = base .. ':owners'
local function owner_of(n, b) return b.is_owned and call('HGET', OWNERS, member(n)) or '' end

local function own_block(n, owner)
  call('HSET', OWNERS, member(n), owner)
  call('SADD', key('owner', owner), member(n) .. 'b')
end

-- Return the names of a block, without extras and bodies.
local function names_at(n, b) return call('GETRANGE', block_key(n), 0, b.names - 1) end

-- Return some numbers for each slot, which are in order from a place on.
local FORMATS = {}
local function numbers_at(text, size, form, at)
  local name = form .. size
  FORMATS[name] = FORMATS[name] or '>' .. string.rep(form, size)
  return {unpack_from(FORMATS[name], text, at + 1)}
end

-- For each slot: 1 when it is gone, due, and where its id ends.
local function index_of(text, b) return numbers_at(text, b.size, 'BI6I2', b.index) end

-- Return the same, reading no more than that.
local function index_at(n, b)
  local text = call('GETRANGE', block_key(n), b.index, b.index + 9 * b.size - 1)
  return numbers_at(text, b.size, 'BI6I2', 0)
end

local function made_id(n) return string.format('~%x', n * 256 + SHARD) end

-- Return the numbers of a block's messages as `ids` has them: they differ in their last byte alone.
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
  local index, start = index_of(text, b), b.index + 9 * b.size
  for slot = 1, b.size do
    local last = index[3 * slot]
    ids[slot] = text:sub(start + 1, last)
    start = last
  end
  return ids
end

-- Return the messages of a block as loose ones have them, by slot; those that are gone are left out.
local function unpacked(text, b, n)
  local index, id_start = index_of(text, b), b.index + 9 * b.size
  local data, start = numbers_at(text, b.size, 'I4I2', b.names), b.names + 6 * b.size
  local found, owner = {}, owner_of(n, b)
  for slot = 0, b.size - 1 do
    local gone, due, id_end = index[3 * slot + 1], index[3 * slot + 2], index[3 * slot + 3]
    local last, extra = data[2 * slot + 1], data[2 * slot + 2]
    if gone == 0 then
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
  if b.state == LEASED then
    call('ZREM', LEASES, member(n) .. 'b')
    if b.is_owned then
      call('SREM', key('owner', owner_of(n, b)), member(n) .. 'b')
      call('HDEL', OWNERS, member(n))
    end
    return false
  end
  local ready, delayed = block_entry(n, b)
  if call('ZREM', key('delayed', b.topic), delayed) == 1 then return false end
  call('ZREM', key('ready', b.topic), ready)
  return true
end

-- Forget a block; its place stays while its first message is there as a loose one.
local function drop_block(n)
  call('DEL', block_key(n))
  if call('HEXISTS', MESSAGES, member(n)) == 0 then leave({n}) end
end

-- Make all messages of a block loose ones in the same state.
local function explode(n, text, b)
  local messages = unpacked(text, b, n)
  local was_ready = lift_block(n, b)
  drop_block(n)
  local fields, ready, delayed, leases, places = {}, {}, {}, {}, {}
  for slot = 0, b.size - 1 do
    local r = messages[slot]
    if r then
      local m = n + slot
      fields[#fields + 1] = member(m)
      fields[#fields + 1] = encode(r)
      places[#places + 1] = m
      if b.state == LEASED then
        leases[#leases + 1] = b.ends
        leases[#leases + 1] = member(m)
        if r.owner ~= '' then call('SADD', key('owner', r.owner), member(m)) end
      elseif was_ready or r.due <= now then
        ready[#ready + 1] = b.priority
        ready[#ready + 1] = ready_member(m, r.due)
      else
        delayed[#delayed + 1] = r.due
        delayed[#delayed + 1] = delayed_member(m, b.priority)
      end
    end
  end
  if #places == 0 then return end
  enter(places)
  many('HSET', MESSAGES, fields)
  many('ZADD', LEASES, leases)
  many('ZADD', key('delayed', b.topic), delayed)
  many('ZADD', key('ready', b.topic), ready)
  if not was_ready and #ready > 0 then
    count(b.topic, 'delayed', -#ready / 2)
    count(b.topic, 'ready', #ready / 2)
    wake(b.topic, #ready / 2)
  end
end

-- Give a message of a block its data.
local function with_data(n, r, b)
  local start, slot = b.names + 6 * b.size, n % 64
  local at = b.names + 6 * slot
  if slot > 0 then start = unpack_from('>I4', call('GETRANGE', block_key(n), at - 6, at - 3)) end
  local last, extra = unpack_from('>I4I2', call('GETRANGE', block_key(n), at, at + 5))
  local data = last > start and call('GETRANGE', block_key(n), start, last - 1) or ''
  r.extra, r.body = data:sub(1, extra), data:sub(extra + 1)
  return r
end

-- Return one message of a block, and the block's head; nil when it is not there. Without its data
-- it is marked as packed: whoever changes it takes it out first.
local function packed(n, names_only)
  local b = head_at(n)
  local slot = n % 64
  if not b or slot >= b.size then return nil end
  local at = b.index + 9 * slot
  local gone, due, id_end = unpack_from('>BI6I2', call('GETRANGE', block_key(n), at, at + 8))
  if gone == 1 then return nil end
  local id_start = b.index + 9 * b.size
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

local function is_ready(n, b)
  return b.state == WAITING and call('ZSCORE', key('ready', b.topic), (block_entry(n, b)))
end

-- Mark one message of a block as gone, and forget the block with its last one.
local function take_out(n, b)
  local slot = n % 64
  if b.live == 1 then
    lift_block(n - slot, b)
    return drop_block(n - slot)
  end
  call('SETRANGE', block_key(n), 2, string.char(b.live - 1))
  call('SETRANGE', block_key(n), b.index + 9 * slot, '\1')
end

-- Make one message of a block a loose one in the same state; nil when it is not there.
local function extract(n)
  local slot = n % 64
  local first = n - slot
  local r, b = packed(n)
  if not r then return nil end
  local was_ready = is_ready(first, b)
  take_out(n, b)
  enter({n})
  save(n, r)
  touched[b.topic] = true
  if b.state == LEASED then
    call('ZADD', LEASES, r.ends, member(n))
    if r.owner ~= '' then call('SADD', key('owner', r.owner), member(n)) end
  elseif was_ready or r.due <= now then
    call('ZADD', key('ready', b.topic), r.priority, ready_member(n, r.due))
    if not was_ready then
      count(b.topic, 'delayed', -1)
      count(b.topic, 'ready', 1)
      wake(b.topic, 1)
    end
  else
    call('ZADD', key('delayed', b.topic), r.due, delayed_member(n, r.priority))
  end
  return r
end

-- Return a message as a loose one in its state.
local function hold(n, r) return r.is_packed and extract(n) or r end

-- Take a message out of the set of its state, or out of its block; as lift.
local function lifted(n, r)
  if not r.is_packed then
    lift(n, r)
    return r
  end
  local b = r.block
  with_data(n, r, b)
  if r.state == LEASED then
    count(r.topic, 'leased', -1)
    r.owner, r.ends = '', 0
  else
    count(r.topic, is_ready(n - n % 64, b) and 'ready' or 'delayed', -1)
  end
  take_out(n, b)
  enter({n})
  r.is_packed, r.block = nil, nil
  return r
end

-- Return the head of the block that a receipt is of, while its take has it.
local function held_block(n, take)
  local b = head_at(n)
  return b and b.state == LEASED and b.take == take and b.ends > now and b or nil
end

-- Return a message that is held by the take that a receipt names, as it lies there; else nil.
local function held_by(n, take)
  local text = call('HGET', MESSAGES, member(n))
  if text then
    local r = decode(text)
    return r.state == LEASED and r.take == take and r.ends > now and r or nil
  end
  if not held_block(n, take) then return nil end
  return (packed(n, true))
end

-- Tell whether the slots of a group are all of a block of which nothing is gone, in order.
local SLOTS = {}
for slot = 0, 63 do SLOTS[slot + 1] = string.char(slot) end
SLOTS = table.concat(SLOTS)
local function is_whole(b, slots) return b.live == b.size and slots == SLOTS:sub(1, b.size) end

-- Do something with each message of a group of receipts; return a byte for each.
local function each_held(group, act)
  local first, take = unpack_from('>I7I4', group)
  local results, b = {}, #group > 18 and held_block(first, take)
  -- Many of a block cost less when all of it is loose.
  if b then explode(first, call('GET', block_key(first)), b) end
  for i = 12, #group do
    local n = first + group:byte(i)
    local r = held_by(n, take)
    results[i - 11] = r and act(n, r) or '\9'
  end
  return table.concat(results)
end

-- A topic whose messages differ in priority has to be settled before a take knows their order.
local function learn_priority(topic, priority)
  local usual = call('HGET', KNOWN, topic)
  if not usual then
    call('HSET', KNOWN, topic, priority)
  elseif usual ~= 'mixed' and usual ~= tostring(priority) then
    call('HSET', KNOWN, topic, 'mixed')
  end
end

local function set_priority(r, priority)
  if priority == '' then return end
  r.priority = tonumber(priority)
  learn_priority(r.topic, r.priority)
end

-- Time ---------------------------------------------------------------------------------------
local function expire(n, r)
  r.error = 'expired'
  bury(n, r, 8)
end

local function lapse(n, r)
  lift(n, r)
  if is_used_up(r.attempt, r.most, r.topic) then return bury(n, r, 7) end
  note(6, r.topic, r.id, r.due, r.attempt)
  if r.expires > 0 and r.expires <= now then return expire(n, r) end
  wait(n, r)
  save(n, r)
end

-- Return a message as time has left it, without changing anything but that; nil if it is gone.
local function load(n)
  local text = call('HGET', MESSAGES, member(n))
  local r = text and decode(text) or extract(n)
  if not r then return nil end
  if r.state == LEASED and r.ends <= now then
    lapse(n, r)
  elseif r.state == WAITING and r.expires > 0 and r.expires <= now then
    lift(n, r)
    expire(n, r)
  end
  return r
end

-- Return the same, but a message of a block as it lies there, marked, unless time has to move it.
local function find(n)
  if call('HEXISTS', MESSAGES, member(n)) == 1 then return load(n) end
  local r = packed(n, true)
  if r and r.state == LEASED and r.ends <= now then return load(n) end
  return r
end

-- Return the same for readers, who leave a block as it is.
local function read(n)
  local text = call('HGET', MESSAGES, member(n))
  if text then return text end
  local r = packed(n)
  return r and encode(r) or false
end

-- Return the number of a message by its id; nil when there is none.
local function number_of(topic, id)
  if is_made(id) then
    local n = #id < 16 and tonumber(id:sub(2), 16)
    return n and n % 256 == SHARD and floor(n / 256) or nil
  end
  local n = call('HGET', key('ids', topic), id)
  return n and not remembered_until(n) and unpack_from('>I6', n) or nil
end

-- Do something with each message of a topic that an id names; return a byte for each.
local function each_named(topic, first, act)
  local results = {}
  for i = first, #ARGV do
    local n = number_of(topic, ARGV[i])
    local r = n and find(n)
    if r and r.topic == topic and r.id == ARGV[i] then
      results[#results + 1] = act(n, r, i)
    else
      results[#results + 1] = '\14'
    end
  end
  return table.concat(results)
end

local function lapse_block(n)
  local b = head_at(n)
  if is_used_up(b.attempt, b.most, b.topic) then
    explode(n, call('GET', block_key(n)), b)
    for slot = 0, b.size - 1 do
      local loose = call('HGET', MESSAGES, member(n + slot))
      if loose then lapse(n + slot, decode(loose)) end
    end
    return
  end
  lift_block(n, b)
  note_block(6, n, b, b.attempt, names_at(n, b))
  call('SETRANGE', block_key(n), 0, pack('>BBBBI2I4I6', WAITING, b.size, b.live, b.flags % 2, b.attempt, b.take, 0))
  local ready, delayed = block_entry(n, b)
  count(b.topic, 'leased', -b.live)
  if b.due <= now then
    call('ZADD', key('ready', b.topic), b.priority, ready)
    count(b.topic, 'ready', b.live)
    wake(b.topic, b.live)
  else
    call('ZADD', key('delayed', b.topic), b.due, delayed)
    count(b.topic, 'delayed', b.live)
  end
end

local function end_leases(budget)
  local found = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, budget)
  for i = 1, #found do
    local n = unpack_from('>I7', found[i])
    if #found[i] == 8 then
      lapse_block(n)
      budget = budget - 8
    else
      lapse(n, decode(call('HGET', MESSAGES, found[i])))
      budget = budget - 1
    end
    if budget <= 0 then break end
  end
  return budget
end

local function end_waits(topic, budget)
  local found = call('ZRANGEBYSCORE', key('expiring', topic), '-inf', now, 'LIMIT', 0, math.ceil(budget))
  for i = 1, #found do
    local n = unpack_from('>I7', found[i])
    local r = decode(call('HGET', MESSAGES, found[i]))
    lift(n, r)
    expire(n, r)
  end
  return budget - #found
end

-- Make ready what is due: whole blocks whose messages are due together, else message by message.
local function promote(topic, budget)
  local name = key('delayed', topic)
  local found = call('ZRANGEBYSCORE', name, '-inf', now, 'WITHSCORES', 'LIMIT', 0, math.ceil(budget * 4))
  local ready, gone, number = {}, {}, 0
  for i = 1, #found, 2 do
    local entry, due = found[i], tonumber(found[i + 1])
    local n, priority = unpack_from('>I7I4', entry)
    if #entry == 12 then
      local b = head_at(n)
      if b.due < b.last then
        explode(n, call('GET', block_key(n)), b)
        budget = budget - 44
      else
        ready[#ready + 1] = priority
        ready[#ready + 1] = ready_member(n, due) .. 'b'
        gone[#gone + 1] = entry
        number = number + b.live
        budget = budget - 2
      end
    else
      ready[#ready + 1] = priority
      ready[#ready + 1] = pack('>I6', due) .. entry:sub(1, 7)
      gone[#gone + 1] = entry
      number = number + 1
      budget = budget - 0.4
    end
    if budget <= 0 then break end
  end
  if #gone > 0 then
    many('ZREM', name, gone)
    many('ZADD', key('ready', topic), ready)
    count(topic, 'delayed', -number)
    count(topic, 'ready', number)
    wake(topic, number)
  end
  touched[topic] = true
  return budget
end

-- Forget some of the acked ids whose time is over.
local function forget_some(number)
  for _, text in ipairs(call('ZRANGEBYSCORE', FORGETS, '-inf', now, 'LIMIT', 0, number)) do
    local names = cmsgpack.unpack(text)
    local name = key('ids', table.remove(names))
    local found, old = call('HMGET', name, unpack(names)), {}
    for i = 1, #names do
      local ends = remembered_until(found[i])
      if ends and ends <= now then old[#old + 1] = names[i] end
    end
    if #old > 0 then call('HDEL', name, unpack(old)) end
    call('ZREM', FORGETS, text)
  end
end

-- Let a ready message or block wait again.
local function demote(topic, entry, priority)
  local due, n = unpack_from('>I6I7', entry)
  local number, mark = 1, ''
  if #entry == 14 then number, mark = head_at(n).live, 'b' end
  call('ZREM', key('ready', topic), entry)
  call('ZADD', key('delayed', topic), due, delayed_member(n, priority) .. mark)
  count(topic, 'ready', -number)
  count(topic, 'delayed', number)
end

-- Let what is ready too early of one topic wait again: of each priority that is what stands last.
-- Begin with the priorities up to a bound; return from where to go on, nil at the end.
local function turn_topic(topic, bound, budget)
  local name = key('ready', topic)
  local rank = call('ZCOUNT', name, '-inf', bound) - 1
  while rank >= 0 do
    if budget <= 0 then return bound, budget end
    local entry, priority = unpack(call('ZRANGE', name, rank, rank, 'WITHSCORES'))
    if unpack_from('>I6', entry) > now then
      demote(topic, entry, tonumber(priority))
      bound, rank = priority, rank - 1
    else
      bound = '(' .. priority
      rank = call('ZCOUNT', name, '-inf', bound) - 1
    end
    budget = budget - 1
  end
  return nil, budget
end

-- After the clock went back: walk all topics, some of them a call, and let what is ready too early
-- wait again; tell whether the walk is at its end. `turn` has where it is; when the clock goes
-- back again meanwhile, all are walked once more after it, so that every call comes nearer.
local function turn_back(text, is_back)
  local walk = text and cmsgpack.unpack(text) or {cursor = '0', left = {}, bound = '+inf', rounds = 1}
  if text and is_back then walk.rounds = 2 end
  local left, budget = walk.left, BUDGET
  while budget > 0 do
    if #left > 0 then
      walk.bound, budget = turn_topic(left[#left], walk.bound, budget)
      if not walk.bound then left[#left], walk.bound = nil, '+inf' end
    elseif walk.cursor ~= '' then
      local found = call('HSCAN', KNOWN, walk.cursor, 'COUNT', LIMITS.topics)
      walk.cursor = found[1] == '0' and '' or found[1]
      for i = 1, #found[2], 2 do left[#left + 1] = found[2][i] end
    elseif walk.rounds > 1 then
      walk.cursor, walk.rounds = '0', 1
    else
      call('HDEL', META, 'turn')
      return true
    end
    budget = budget - 1
  end
  call('HSET', META, 'turn', cmsgpack.pack(walk))
  return false
end

-- Do what time asks for, as much of it as one call may; tell whether that was all.
local function settle()
  local was = call('HMGET', META, 'seen', 'turn')
  local seen = tonumber(was[1] or 0)
  if now ~= seen then call('HSET', META, 'seen', now) end
  if (now < seen or was[2]) and not turn_back(was[2], now < seen) then return false, false end
  forget_some(2)
  local budget = end_leases(BUDGET)
  local has_lapsed = budget > 0
  local due = call('ZRANGEBYSCORE', TIMERS, '-inf', now, 'LIMIT', 0, LIMITS.timers)
  for i = 1, #due do
    if budget > 0 then budget = end_waits(due[i], budget) end
    if budget > 0 then budget = promote(due[i], budget) end
    touched[due[i]] = true
  end
  return budget > 0 and #due < LIMITS.timers, has_lapsed
end

-- The end of a call --------------------------------------------------------------------------
local function first_score(name)
  local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or nil
end

local function nearer(a, b)
  if a and b then return math.min(a, b) end
  return a or b
end

local function write_log()
  if happened == 0 then return end
  local ends = call('HINCRBY', META, 'position', happened)
  local oldest = ends - MAX_EVENTS
  if oldest > 0 then call('XTRIM', base .. ':events', 'MINID', '~', oldest .. '-1') end
  call('XADD', base .. ':events', ends .. '-0', 'n', happened, 't', now, 'e', table.concat(log))
  for kind, number in pairs(totals) do call('HINCRBY', base .. ':totals', kind, number) end
end

-- Write down what changed; return the next deadline, and pairs of topic and how many are new.
local function finish()
  write_log()
  for topic, of in pairs(counts) do
    for state, delta in pairs(of) do
      if delta ~= 0 then call('HINCRBY', key('counts', topic), state, delta) end
    end
  end
  for topic in pairs(touched) do
    local next = nearer(first_score(key('delayed', topic)), first_score(key('expiring', topic)))
    if next then call('ZADD', TIMERS, next, topic) else call('ZREM', TIMERS, topic) end
  end
  local next = nearer(first_score(LEASES), first_score(TIMERS)) or 0
  local new = {}
  for topic, number in pairs(woken) do
    new[#new + 1] = topic
    new[#new + 1] = number
  end
  local before = tonumber(call('HGET', META, 'next') or 0)
  if next ~= before then call('HSET', META, 'next', next) end
  if #new > 0 or (next > 0 and (before == 0 or next < before)) then
    call('PUBLISH', base .. ':wake', cmsgpack.pack({ARGV[2], next, new}))
  end
  return {now, next, new}
end

-- A call that is repeated, as its answer was lost, is answered as before and does nothing again;
-- nor does one that comes when its slot has gone on to later calls, as nobody waits for it.
local CALLS = base .. ':calls:' .. ARGV[2]
local function answered()
  local last = tonumber(call('HGET', CALLS, ARGV[4] .. 'n') or 0)
  local serial = tonumber(ARGV[5])
  if last < serial then return nil end
  if last > serial then return {'late', finish()} end
  return cmsgpack.unpack(call('HGET', CALLS, ARGV[4]))
end

local function answer(given)
  call('HSET', CALLS, ARGV[4], cmsgpack.pack(given), ARGV[4] .. 'n', ARGV[5])
  call('PEXPIRE', CALLS, 14400000)
  return given
end

-- Return the text of a loose message that the take of an entry still has; '' when it has not, or
-- when its lease is over, whether anybody has noticed or not.
local function still(entry)
  local text = call('HGET', MESSAGES, entry:sub(1, 7))
  if not text then return '' end
  local state, _, take, ends = unpack_from('>BI2I4I6', text)
  return state == LEASED and take == unpack_from('>I4', entry, 8) and ends > now and text or ''
end
