-- Fronts: of each key of an ordered topic what is to be done before others of it go. A front is one of these:
-- * What was taken and is not done, in 7 bytes each: one, and more only when they were taken before the topic
--   was ordered; they come again one at a time, in their order. Among them may be what is not begun any more,
--   and one may be there twice.
-- * A line: 'q', '+' if others may be in the lane, else ' ', a priority in 4 bytes, and the entries among the
--   ready of messages of that priority that are not begun, in their order. The first stands or is taken, and
--   stays there until it is acked, so that a take has nothing to write down; the others are parked. What
--   else meets a line cuts it: the parked are in the lane then.
-- * Marks: the numbers of blocks, in 7 bytes each, and 'b'. In each of these the key has one message, which make up
--   its line, in this order. So it is when all goes its usual way; as the text is the same for many keys, a put and
--   an ack of a block look at few of them. Who looks up a front finds it spelled out, as a line, and so it is
--   written down: before a message leaves its block, its front is looked up.
-- `fronts` has the texts that the call has looked up, by topic and key, '' where there is none; `new_fronts` the
-- keys of those that it has yet to write down.
-- What there is to know of lines; `spelled_out` is of blockkeys.lua.
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

-- Look up the fronts of some keys together.
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

-- Let the front of a key be a text, and be written down at the end of the call.
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

-- Return where an entry stands in a line that it does not lead.
function line.place(text, entry)
  for at = 20, #text, 13 do
    if text:sub(at, at + 12) == entry then return at end
  end
end

-- Tell whether an entry among the ready comes before another of its priority. Lua would compare the texts as
-- the words of some language.
local function is_earlier(entry, other)
  local due, n = unpack_from('>I6I7', entry)
  local its_due, its_n = unpack_from('>I6I7', other)
  return due < its_due or (due == its_due and n < its_n)
end

-- Return a line with one more entry; nil when the lane has to have it.
function line.joined(text, entry)
  if line.has_others(text) or #text >= 6 + 13 * LIMITS.lined then return nil end
  local at = #text
  while at > 19 and is_earlier(entry, text:sub(at - 12, at)) do at = at - 13 end
  return text:sub(1, at) .. entry .. text:sub(at + 1)
end

-- Note that others of a key may be in its lane, where its front has to say so.
local function note_others(topic, key)
  local front = fronts[topic][key]
  if line.is(front) and not line.has_others(front) then write_fronts(topic, key, 'q+' .. front:sub(3)) end
end
