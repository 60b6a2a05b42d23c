-- Loose messages: a head as LOOSE says, then topic, id, extra, error, owner and body.

local function encode(r)
  return pack(LOOSE.all, r.state, r.attempt, r.take, r.ends, r.due, r.priority, r.expires, r.lease,
    r.most, #r.topic, #r.id, #r.extra, r.error and #r.error or 65535, #r.owner)
    .. r.topic .. r.id .. r.extra .. (r.error or '') .. r.owner .. r.body
end

-- Return a message without its error, owner and body, and where they begin; and their sizes.
local function outline(text)
  local r = {}
  local t, i, x, e, o
  r.state, r.attempt, r.take, r.ends, r.due, r.priority, r.expires, r.lease, r.most, t, i, x, e, o
    = unpack_from(LOOSE.all, text)
  local at = LOOSE.size + 1
  r.topic = text:sub(at, at + t - 1); at = at + t
  r.id = text:sub(at, at + i - 1); at = at + i
  r.extra = text:sub(at, at + x - 1)
  return r, at + x, e, o
end

local function decode(text, has_no_body)
  local r, at, e, o = outline(text)
  if e ~= 65535 then r.error = text:sub(at, at + e - 1); at = at + e end
  r.owner = text:sub(at, at + o - 1); at = at + o
  if not has_no_body then r.body = text:sub(at) end
  return r
end

local function save(n, r) call('HSET', KEY.messages, member(n), encode(r)) end

local function delayed_member(n, priority) return pack('>I7I4', n, priority) end
local function ready_member(n, due) return pack('>I6I7', due, n) end

-- Make a message wait for its due, or for a taker.
local function wait(n, r)
  if r.due <= now then
    stand_ready(r, ready_member(n, r.due))
    count(r.topic, 'ready', 1)
    if r.expires == 0 or r.expires > now then wake(r.topic, 1) end
  else
    call('ZADD', KEY.delayed .. r.topic, r.due, delayed_member(n, r.priority))
    count(r.topic, 'delayed', 1)
  end
  if r.expires > 0 then call('ZADD', KEY.expiring .. r.topic, r.expires, member(n)) end
  r.state = STATE.waiting
end

-- Remove a message from the set of its state; the caller adds it to another, or deletes it.
local function lift(n, r, is_taken)
  mark(r)
  heads[n] = nil
  if r.state == STATE.waiting then
    if call('ZREM', KEY.delayed .. r.topic, delayed_member(n, r.priority)) == 1 then
      leave_ready(r, ready_member(n, r.due))
      count(r.topic, 'delayed', -1)
    else
      local entry = ready_member(n, r.due)
      local score = not is_taken and settings(r.topic).fair and tonumber(call('ZSCORE', KEY.ready .. r.topic, entry) or nil)
      call('ZREM', KEY.ready .. r.topic, entry)
      leave_ready(r, entry)
      if score then give_back(r, score) end
      count(r.topic, 'ready', -1)
    end
    if r.expires > 0 then call('ZREM', KEY.expiring .. r.topic, member(n)) end
  elseif r.state == STATE.leased then
    call('ZREM', KEY.leased, member(n))
    if r.owner ~= '' then call('SREM', KEY.owner .. r.owner, member(n)); r.owner = '' end
    r.ends = 0
    count(r.topic, 'leased', -1)
  else
    call('ZREM', KEY.dead .. r.topic, member(n))
    r.ends = 0
    count(r.topic, 'dead', -1)
  end
end

local function bury(n, r, kind)
  call('ZADD', KEY.dead .. r.topic, r.due, member(n))
  r.state, r.ends = STATE.dead, now
  count(r.topic, 'dead', 1)
  note(kind, r.topic, r.id, r.due, r.attempt)
  save(n, r)
end
