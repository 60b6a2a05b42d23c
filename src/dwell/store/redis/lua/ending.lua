-- The end of a call: writes the changes, and an answer that can be asked for again.
local finish
do
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
  local ends = call('HINCRBY', KEY.meta, 'position', happened)
  local oldest = ends - MAX_EVENTS
  if oldest > 0 then call('XTRIM', KEY.events, 'MINID', '~', oldest .. '-1') end
  call('XADD', KEY.events, ends .. '-0', 'n', happened, 't', now, 'e', table.concat(log))
  for kind, number in pairs(totals) do call('HINCRBY', KEY.totals, kind, number) end
end

-- Wake takers for leases that have ended, if the number of leases is limited.
local function wake_for_ended()
  for topic, of in pairs(counts) do
    if (of.leased or 0) < 0 and (settings(topic).most_leased or 0) > 0 then wake(topic, -of.leased) end
  end
end

-- Name the topics that somebody watches and whose messages have ended among the woken: behind a byte of 0.
local function tell_watchers()
  if not next(META.over) or call('EXISTS', KEY.watched) == 0 then return end
  for topic in pairs(META.over) do
    local ends = tonumber(call('HGET', KEY.watched, topic) or nil)
    if ends and ends > now then
      woken['\000' .. topic] = 1
    elseif ends then
      call('HDEL', KEY.watched, topic)
    end
  end
end

-- Write the changes; return the next deadline, and pairs of topic and number of new messages.
function finish()
  open_lanes()
  wake_for_ended()
  write_log()
  tell_watchers()
  for topic, of in pairs(counts) do
    for state, delta in pairs(of) do
      if delta ~= 0 then call('HINCRBY', KEY.counts .. topic, state, delta) end
    end
  end
  for topic in pairs(touched) do
    local next = nearer(first_score(KEY.delayed .. topic), first_score(KEY.expiring .. topic))
    next = nearer(next, again_ms(topic))
    if settings(topic).forming then next = nearer(next, now + 1) end
    if next then call('ZADD', KEY.timers, next, topic) else call('ZREM', KEY.timers, topic) end
  end
  local next = nearer(first_score(KEY.leased), first_score(KEY.timers)) or 0
  local new = {}
  for topic, number in pairs(woken) do
    new[#new + 1] = topic
    new[#new + 1] = number
  end
  local before = META.next
  if next ~= before then call('HSET', KEY.meta, 'next', next) end
  META.next = next
  if #new > 0 or (next > 0 and (before == 0 or next < before)) then
    call('PUBLISH', KEY.wake .. ':' .. META.own, cmsgpack.pack({INSTANCE, next, new}))
  end
  return {now, next, new}
end
end

-- A call that is repeated, because its answer was lost, gets the first answer and does nothing; a call whose slot has
-- gone on to later calls does nothing either, because nothing waits for it.
local function answered()
  local last = tonumber(call('HGET', CALLS, SLOT .. 'n') or 0)
  local serial = tonumber(SERIAL)
  if last < serial then return nil end
  if last > serial then return {'late', finish()} end
  return cmsgpack.unpack(call('HGET', CALLS, SLOT))
end

local function answer(given)
  call('HSET', CALLS, SLOT, cmsgpack.pack(given), SLOT .. 'n', SERIAL)
  call('PEXPIRE', CALLS, 14400000)
  return given
end

-- Return the text of a loose message that the take of an entry still holds; '' if it does not, or if its lease is over,
-- recorded or not.
local function still(entry)
  local text = call('HGET', KEY.messages, entry:sub(1, 7))
  if not text then return '' end
  local state, _, take, ends = unpack_from(LOOSE.lease, text)
  return state == STATE.leased and take == unpack_from('>I4', entry, 8) and ends > now and text or ''
end

-- A verb that changes something: a repeated call gets its first answer.
local function kept(run)
  return function(...) return answered() or answer(run(...)) end
end

-- A verb that only reads, after all due work is done.
local function looking(run)
  return function(...)
    if not settle() then return {'again', finish()} end
    return run(...)
  end
end
