-- Return a message as a loose message in its state.
local function hold(n, r) return r.is_packed and extract(n) or r end

-- Take a message out of the set of its state, or out of its block; like lift.
local function lifted(n, r, is_taken)
  if not r.is_packed then
    lift(n, r, is_taken)
    return r
  end
  local b = r.block
  with_data(n, r, b)
  heads[n] = nil
  learn_fronts_of({r}, b)
  if r.state == STATE.leased then
    mark(r)
    count(r.topic, 'leased', -1)
    r.owner, r.ends = '', 0
  else
    count(r.topic, is_ready(n - n % 64, b) and 'ready' or 'delayed', -1)
    leave_place(r, ready_member(n, r.due))
  end
  take_out(n, b)
  enter({n})
  r.is_packed, r.block = nil, nil
  return r
end

-- Return the head of the block of a receipt, while its take holds the block.
local function held_block(n, take)
  local b = head_at(n)
  return b and b.state == STATE.leased and b.take == take and b.ends > now and b or nil
end

-- Return a message that is held by the take of a receipt, unmoved; else nil.
local function held_by(n, take)
  local text = call('HGET', KEY.messages, member(n))
  if text then
    local r = decode(text)
    return r.state == STATE.leased and r.take == take and r.ends > now and r or nil
  end
  if not held_block(n, take) then return nil end
  return (packed(n, true))
end

-- Tell whether the slots of a group are all live slots of a block, in order.
local function is_whole(n, b, slots)
  if #slots ~= b.live then return false end
  if b.live == b.size then return slots == SLOTS:sub(1, b.size) end
  local index, at = index_at(n, b), 0
  for slot = 0, b.size - 1 do
    if index[3 * slot + 1] == 0 then at = at + 1 end
    if index[3 * slot + 1] == 0 and slots:byte(at) ~= slot then return false end
  end
  return true
end

local each_receipt
do
-- Run an action on each message of a group of receipts, with its place in the call; return a byte for each, and the
-- cost, in units of one small message. `before` is the number of earlier receipts in the call.
local function each_held(group, act, before)
  local first, take = unpack_from('>I7I4', group)
  local results, b, number, cost = {}, #group > 18 and held_block(first, take), 0, 0
  local index = b and index_at(first, b) or {}
  for i = 12, #group do
    if index[3 * group:byte(i) + 1] == 0 then number = number + 1 end
  end
  -- Many messages of a block cost less when all of it is loose. A message that has left the block may have been taken
  -- as often, by another taker.
  if number > 7 then explode(first, call('GET', block_key(first)), b) end
  for i = 12, #group do
    local n = first + group:byte(i)
    local r = held_by(n, take)
    results[i - 11] = r and act(n, r, before + i - 11) or RESULT.stale
    cost = cost + 1 + (r and r.body and #r.body or 0) / BYTES_AS_ONE
  end
  return table.concat(results), cost
end

-- Do so with all groups of receipts in the call, or with the first of them when their messages are large: the caller
-- sends the others again. `of_group` may answer for a group as a whole.
function each_receipt(act, of_group)
  local results, before, left = {}, 0, LIMITS.looked
  for i = rest, #ARGV do
    local found, cost = of_group and of_group(ARGV[i]), 1
    if not found then found, cost = each_held(ARGV[i], act, before) end
    results[#results + 1] = found
    before, left = before + #found, left - cost
    if left <= 0 then break end
  end
  return table.concat(results)
end
end

-- A topic whose messages differ in priority must be settled before a take knows their order.
local function learn_priority(topic, priority)
  local usual = call('HGET', KEY.known, topic)
  if not usual or usual == '' then
    call('HSET', KEY.known, topic, priority)
  elseif usual ~= 'mixed' and usual ~= tostring(priority) then
    call('HSET', KEY.known, topic, 'mixed')
  end
end

local function set_priority(r, priority)
  if priority == '' then return end
  r.priority = tonumber(priority)
  learn_priority(r.topic, r.priority)
end
