-- Fronts: for each key of an ordered topic, the messages that must be done before others of the key are taken. A front
-- is one of these:
-- * Messages that were taken and are not done, in 7 bytes each: one, and more only if they were taken before the topic
--   was ordered; they come again one at a time, in their order. Some of them may be done already, and one may be there
--   twice.
-- * A line: 'q', '+' if others may be in the lane, else ' ', a priority in 4 bytes, and the entries among the ready of
--   messages of that priority that are not in progress, in their order. The first is available or taken, and stays
--   there until it is acked, so that a take has nothing to write; the others are parked. Any other event cuts the line:
--   then the parked messages are in the lane.
-- * Marks: the numbers of blocks, in 7 bytes each, and 'b'. The key has one message in each of these blocks, which make
--   up its line, in this order. This is the usual case; the text is the same for many keys, so a put and an ack of a
--   block read few of them. A read of a front spells it out as a line, and writes it so: before a message leaves its
--   block, its front is read.
-- `fronts` has the texts that the call has read, by topic and key, '' for an empty front; `new_fronts` has the keys of
-- those still to be written.
-- The functions for lines; `spelled_out` is defined in blockkeys.lua.
local line = {}
function line.is(text) return text:byte(1) == 113 end
function line.head(priority) return 'q ' .. pack('>I4', priority) end
function line.first(text) return text:sub(7, 19) end
function line.number(text) return (unpack_from('>I7', text, 13)) end
function line.has_others(text) return text:byte(2) == 43 end
function line.is_marks(text) return #text % 7 == 1 and text:byte(1) ~= 113 end
function line.mark(n) return member(n) .. 'b' end

local function new_fronts_of(topic)
  local of = new_fronts[topic]
  if not of then of = {}; new_fronts[topic] = of end
  return of
end

-- Read the fronts of some keys together.
local function learn_fronts(topic, keys)
  local of, missing = fronts[topic] or {}, {}
  fronts[topic] = of
  for i = 1, #keys do
    if of[keys[i]] == nil then
      of[keys[i]] = ''
      missing[#missing + 1] = keys[i]
    end
  end
  if #missing == 0 then return end
  local texts = look_up('HMGET', KEY.fronts .. topic, missing)
  for i = 1, #missing do
    local key, text = missing[i], texts[i] or ''
    if line.is_marks(text) then
      text = line.spelled_out(topic, key, text)
      new_fronts_of(topic)[key] = true
    end
    of[key] = text
  end
end

-- Set the front of a key, to be written at the end of the call.
local function write_fronts(topic, key, text)
  fronts[topic][key] = text
  new_fronts_of(topic)[key] = true
end

local function write_down_fronts()
  for topic, of in pairs(new_fronts) do
    local fields, gone = {}, {}
    for key in pairs(of) do
      local text = fronts[topic][key]
      if text == '' then
        gone[#gone + 1] = key
      else
        fields[#fields + 1] = key
        fields[#fields + 1] = text
      end
    end
    many('HSET', KEY.fronts .. topic, fields)
    many('HDEL', KEY.fronts .. topic, gone)
  end
  new_fronts = {}
end

-- Return the place of an entry in a line, unless it leads the line.
function line.place(text, entry)
  for at = 20, #text, 13 do
    if text:sub(at, at + 12) == entry then return at end
  end
end

-- Tell whether an entry among the ready comes before another of its priority. Lua itself compares texts by the rules of
-- a locale.
local function is_earlier(entry, other)
  local due, n = unpack_from('>I6I7', entry)
  local its_due, its_n = unpack_from('>I6I7', other)
  return due < its_due or (due == its_due and n < its_n)
end

-- Return a line with one more entry; nil when the entry belongs in the lane.
function line.joined(text, entry)
  if line.has_others(text) or #text >= 6 + 13 * LIMITS.lined then return nil end
  local at = #text
  while at > 19 and is_earlier(entry, text:sub(at - 12, at)) do at = at - 13 end
  return text:sub(1, at) .. entry .. text:sub(at + 1)
end

-- Note in the front of a key that other messages of the key may be in its lane.
local function note_others(topic, key)
  local front = fronts[topic][key]
  if line.is(front) and not line.has_others(front) then write_fronts(topic, key, 'q+' .. front:sub(3)) end
end
