-- One call of a verb, and the code that all verbs share. KEYS[1] names the shard: all keys start with it and are in its
-- slot. ARGV: 1 the time in ms, 0 for the server's own; 2 the calling instance; 3 the shard's index; 4 the slot of this
-- call among those in progress; 5 the number of the call, which only grows; 6 the number of shards; 7 how many events
-- each keeps; 8 limits as MessagePack, '' for the defaults; 9 the number of the caller's store. A shard that does not
-- belong to that store does nothing and answers {'another', {now, 0, {}}}. The verb's named arguments come after these,
-- its list of arguments starts at `rest`.
--
-- A message is loose, a field of `messages` by its number n; or packed with others of its put in a block, the string
-- `block:<floor(n / 64)>`, where n % 64 is its slot. Members of sorted sets are n in 7 bytes; members for a whole block
-- end with 'b'.
--
-- The library outlives the call: variables of one call are reset by `begin`; Lua's own libraries are missing while the
-- library is loaded.
local OWN = 10
-- Reading this many bytes costs as much as one message.
local BYTES_AS_ONE = 2^15
local call, pack, unpack_from, floor, now, ARGV, rest, INSTANCE, SLOT, SERIAL, SHARD, SHARDS, MAX_EVENTS, LIMITS
local CALLS
-- The values of `meta` about the store, the engine's process and time: read at the start of a call. In `over` the call
-- notes the topics with messages that have ended.
local META
-- The names of the shard's keys, with a topic, a place or the like to be appended to a final colon; and the keys of
-- each shard of this engine.
local KEY
local names_of = {}
-- The settings of the topics in this call, and the changes of the call, written at its end.
local known, touched, counts, woken, totals, log, happened, changed
-- The fronts of lanes that the call has read.
local fronts, new_fronts, begun, ended, heads, next_ones, of_marks
-- The turns that the call has read, and the first messages of lanes before the call.
local turns, firsts

local function begin(keys, args, own)
  call, pack, unpack_from, floor = redis.call, struct.pack, struct.unpack, math.floor
  ARGV, rest = args, OWN + own
  known, touched, counts, woken, totals, log, happened, changed = {}, {}, {}, {}, {}, {}, 0, {}
  fronts, new_fronts, begun, ended, heads, next_ones, of_marks, turns, firsts = {}, {}, {}, {}, {}, {}, {}, {}, {}
  now, INSTANCE, SHARD, SLOT, SERIAL = tonumber(args[1]), args[2], tonumber(args[3]), args[4], args[5]
  SHARDS, MAX_EVENTS = tonumber(args[6]), tonumber(args[7])
  LIMITS = args[8] == '' and USUAL or cmsgpack.unpack(args[8])
  if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000 + floor(time[2] / 1000)
  end
  KEY = names_of[keys[1]]
  if not KEY then
    KEY = {}
    for name, ending in pairs(ENDINGS) do KEY[name] = keys[1] .. ending end
    names_of[keys[1]] = KEY
  end
  CALLS = KEY.calls .. INSTANCE
  local of = call('HMGET', KEY.meta, 'store', 'engine', 'step', 'seen', 'turn', 'next')
  META = {
    own = args[9], store = of[1], engine = of[2], step = tonumber(of[3] or 1),
    seen = tonumber(of[4] or 0), turn = of[5], next = tonumber(of[6] or 0), over = {},
  }
end

-- The state of lives.lua about the lives of a shard.
local lives = {}

-- Register a verb: `run` gets `own` values as named arguments.
local function verb(name, own, run)
  redis.register_function{
    function_name = PREFIX .. name,
    flags = NOT_WHEN_FULL[name] and {} or {'allow-oom'},
    callback = function(keys, args)
      begin(keys, args, own)
      if name ~= 'claim' then
        if META.store ~= META.own then return {'another', {now, 0, {}}} end
        lives.check()
      end
      return run(unpack(args, OWN, OWN + own - 1))
    end,
  }
end

-- Run a command with many arguments in parts that fit Lua's stack; a part has whole pairs.
local function many(command, name, values)
  local most = LIMITS.arguments
  for at = 1, #values, most do call(command, name, unpack(values, at, math.min(at + most - 1, #values))) end
end

local function look_up(command, name, fields)
  local most = LIMITS.arguments
  if #fields == 0 then return {} end
  if #fields <= most then return call(command, name, unpack(fields)) end
  local found = {}
  for at = 1, #fields, most do
    local part = call(command, name, unpack(fields, at, math.min(at + most - 1, #fields)))
    for i = 1, #part do found[at + i - 1] = part[i] end
  end
  return found
end

local function settings(topic)
  if not known[topic] then
    local text = call('HGET', KEY.topics, topic)
    local is_to_form = text and text:byte(1) == TO_FORM
    known[topic] = text and cmsgpack.unpack(is_to_form and text:sub(2) or text) or DEFAULTS
    if is_to_form then known[topic].forming = true end
  end
  return known[topic]
end

-- Return the end of a lease: of the length that the taker asked for, or else the message's, or the topic's.
local function lease_end(asked_ms, own_ms, topic)
  return now + (asked_ms > 0 and asked_ms or own_ms > 0 and own_ms or settings(topic).lease_ms)
end

local function count(topic, state, delta)
  local of = counts[topic]
  if not of then of = {}; counts[topic] = of end
  of[state] = (of[state] or 0) + delta
  touched[topic] = true
end

local function wake(topic, number)
  if number > 0 and not settings(topic).paused then woken[topic] = (woken[topic] or 0) + number end
end

-- What the verbs share about results; `ends` are the events after which nothing more happens to a message by itself.
local results = {ends = {
  [KIND.ack] = true, [KIND.exhaust] = true, [KIND.expire] = true, [KIND.bury] = true, [KIND.cancel] = true,
}}

local function add_total(kind, number)
  totals[kind] = (totals[kind] or 0) + number
  happened = happened + number
end

-- Note an event of one message, or of all messages of a block.
local function note(kind, topic, id, due, attempt)
  add_total(kind, 1)
  if results.ends[kind] then META.over[topic] = true end
  log[#log + 1] = pack(NOTE, 0, kind, #topic, due, attempt, #id) .. topic .. id
end

local function note_block(kind, n, block, attempt, names)
  if block.live == 0 then return end
  add_total(kind, block.live)
  if results.ends[kind] then META.over[block.topic] = true end
  if #names > block.names then names = names:sub(1, block.names) end
  log[#log + 1] = pack(BLOCK_NOTE, 1, kind, n, attempt, block.live, #names)
  log[#log + 1] = names
end
