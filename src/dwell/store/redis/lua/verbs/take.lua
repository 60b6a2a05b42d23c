-- Lease ready messages, topic after topic. `lease_ms` is 0 for each message's own, `bytes_left` is the number of bytes
-- after which leasing stops. The list: topics. Answers {'ok', entries, finish()}, or {'more', entries, finish()} when
-- another call may get more: entries are pairs of a member with the number of its take and the text of its message, as
-- it is after the take, or '' for a block, which the caller reads itself; or {'again'} when the order is unknown until
-- more due work is done.
verb('take', 4, function(limit, lease_ms, owner, bytes_left)
  local taken = answered()
  if taken and taken[1] == 'late' then return taken end
  if taken then
    local word = table.remove(taken, 1)
    for i = 1, #taken, 2 do
      taken[i + 1] = #taken[i] == 11 and still(taken[i]) or ''
    end
    return {word, taken, finish()}
  end
  lease_ms = tonumber(lease_ms)
  local is_settled, has_lapsed = settle()
  if not has_lapsed then return {'again', finish()} end
  local entries, leases, fields, left, loose_left = {}, {}, {}, tonumber(limit), LIMITS.taken
  bytes_left = tonumber(bytes_left)

  local function lease_block(n, b)
    local ends = lease_end(lease_ms, b.lease, b.topic)
    local flags = b.flags % 2 + (owner ~= '' and 2 or 0)
    local new_take = lives.next_take(b.take)
    set_lease(n, b, STATE.leased, flags, b.attempt + 1, new_take, ends)
    if owner ~= '' then own_block(n, owner) end
    local entry = member(n) .. 'b'
    leases[#leases + 1] = ends
    leases[#leases + 1] = entry
    entries[#entries + 1] = entry .. pack('>I4', new_take)
    entries[#entries + 1] = ''
    note_block(KIND.take, n, b, b.attempt + 1, names_at(n, b))
    left = left - b.live
    bytes_left = bytes_left - call('STRLEN', block_key(n))
  end

  local function lease(n, text, topic)
    local state, attempt, take, ends, due, priority, expires, own = unpack_from(LOOSE.until_lease, text)
    ends, take = lease_end(lease_ms, own, topic), lives.next_take(take)
    if owner == '' then
      text = pack(LOOSE.lease, STATE.leased, attempt + 1, take, ends) .. text:sub(LOOSE.lease_size + 1)
    else
      local r = decode(text)
      r.state, r.attempt, r.take, r.ends, r.owner = STATE.leased, attempt + 1, take, ends, owner
      text = encode(r)
      call('SADD', KEY.owner .. owner, member(n))
    end
    if expires > 0 then call('ZREM', KEY.expiring .. topic, member(n)) end
    leases[#leases + 1] = ends
    leases[#leases + 1] = member(n)
    fields[#fields + 1] = member(n)
    fields[#fields + 1] = text
    entries[#entries + 1] = member(n) .. pack('>I4', take)
    entries[#entries + 1] = text
    local id_size = unpack_from('>I2', text, LOOSE.id_size_at + 1)
    note(KIND.take, topic, text:sub(LOOSE.size + #topic + 1, LOOSE.size + #topic + id_size), due, attempt + 1)
    left = left - 1
    bytes_left = bytes_left - #text
  end

  -- For the messages taken from a fair topic: the last turn, the number for each key, and in an ordered topic their
  -- turns.
  local turn, taken_of, turns_of, step = nil, {}, {}, 16

  local function note_turn(r, score)
    local lane = turns_field(key_of(r.extra))
    turn, taken_of[lane] = math.max(turn or 0, score), (taken_of[lane] or 0) + 1
    if ordered_key(r) then
      turns_of[#turns_of + 1] = score
      turns_of[#turns_of + 1] = lane
    end
  end

  -- Lease the first loose entries, or some of them when they are large; their texts are read together.
  local function take_loose(topic, found, scores)
    local names, gone, size = {}, {}, 0
    local most = math.max(loose_left, 1) * BYTES_AS_ONE / call('HSTRLEN', KEY.messages, found[1]:sub(7))
    for i = 1, math.min(#found, math.ceil(most)) do names[i] = found[i]:sub(7) end
    local texts, is_ordered, outlines, keys = look_up('HMGET', KEY.messages, names), settings(topic).ordered, {}, {}
    for i = 1, is_ordered and #names or 0 do
      outlines[i] = outline(texts[i])
      keys[#keys + 1] = ordered_key(outlines[i])
    end
    if is_ordered then learn_fronts(topic, keys) end
    for i = 1, #names do
      local expires = unpack_from('>I6', texts[i], LOOSE.expires_at + 1)
      size = size + #texts[i]
      local n = unpack_from('>I7', names[i])
      if expires > 0 and expires <= now then
        load(n)
      elseif bytes_left > 0 and left > 0 and (not is_ordered or goes(n, outlines[i])) then
        lease(n, texts[i], topic)
        if scores and scores[i] >= FIRST_TURN then note_turn(outlines[i] or outline(texts[i]), scores[i]) end
        gone[#gone + 1] = found[i]
      end
    end
    many('ZREM', KEY.ready .. topic, gone)
    count(topic, 'ready', -#gone)
    count(topic, 'leased', #gone)
    -- Skipped messages are read, too, and large bodies take long.
    step = size > 16 * BYTES_AS_ONE and 4 or math.min(2 * step, LIMITS.taken)
    loose_left = loose_left - size / BYTES_AS_ONE
  end

  -- Lease as many of a block's messages as are wanted, which are most of it; the others stay in it.
  local function take_part(topic, n, b)
    local only, places, index = {}, {}, index_at(n, b)
    for slot = 0, b.size - 1 do
      if index[3 * slot + 1] == 0 and #places < left then
        only[slot] = true
        places[#places + 1] = n + slot
      end
    end
    local messages = unpacked(call('GET', block_key(n)), b, n, only)
    -- A message that leads its line keeps leading it until it is acked.
    learn_fronts_of(messages, b)
    take_all_out(n, b, only, #places)
    enter(places)
    for i = 1, #places do
      local key = ordered_key(messages[places[i] - n])
      begun[places[i]] = key and lane_key(topic, key)
      lease(places[i], encode(messages[places[i] - n]), topic)
    end
    count(topic, 'ready', -#places)
    count(topic, 'leased', #places)
    loose_left = loose_left - #places
    return false
  end

  -- Tell whether a message that was taken out of a block is among the others of it again.
  local function is_of_it(entry, block_entry)
    if not entry or #entry ~= 13 then return false end
    local due, n = unpack_from('>I6I7', block_entry)
    local its_due, m = unpack_from('>I6I7', entry)
    return its_due == due and m - m % 64 == n
  end

  -- Lease a block whole; or make it loose, when only a part is wanted or some of it is loose already.
  local function take_block(topic, entry, following)
    local n = unpack_from('>I7', entry, 7)
    local b = head_at(n)
    if b.is_mixed then
      local is, cost = unmix(n, b)
      loose_left = loose_left - cost
      if is ~= 'stands' then return is == 'parked' end
      b = head_at(n)
    end
    local is_split = is_of_it(following, entry)
    if b.live > left and 2 * left >= b.live and not is_split and may_be_lined(topic) then return take_part(topic, n, b) end
    if b.live > left or is_split then
      explode(n, call('GET', block_key(n)), b)
      loose_left = loose_left - 32
      return false
    end
    lease_block(n, b)
    call('ZREM', KEY.ready .. topic, entry)
    count(topic, 'ready', -b.live)
    count(topic, 'leased', b.live)
    return true
  end

  -- Return how many messages of a block follow it one by one, in entries with their scores.
  local function number_of_it(found, at)
    local number = 0
    while is_of_it(found[at + 2 * number + 2], found[at]) do number = number + 1 end
    return number
  end

  -- Lease the first messages of a topic with lanes; false without any. If some messages of a block are loose, all are
  -- taken, or else all become loose; the caller sorts them.
  local function take_of_lanes(topic)
    local found = call('ZRANGEBYSCORE', KEY.ready .. topic, '-inf', UNPARKED, 'WITHSCORES', 'LIMIT', 0, math.ceil(math.min(left, loose_left, step)) + 1)
    local loose, scores = {}, {}
    for i = 1, #found, 2 do
      if #found[i] == 13 then
        loose[#loose + 1] = found[i]
        scores[#scores + 1] = tonumber(found[i + 1])
      elseif #loose > 0 or left <= 0 or bytes_left <= 0 or loose_left <= 0 then
        break
      elseif not may_be_lined(topic) then
        local n = unpack_from('>I7', found[i], 7)
        explode(n, call('GET', block_key(n)), head_at(n))
        open_lanes()
        loose_left = loose_left - 32
        break
      else
        local number = number_of_it(found, i)
        local is_cut = i + 2 * number == #found - 1
        if i > 1 and is_cut then break end
        local b = number > 0 and head_at((unpack_from('>I7', found[i], 7)))
        local is_split = b and left < (is_cut and b.size or number + b.live)
        if not take_block(topic, found[i], is_split and found[i + 2]) then break end
      end
    end
    if #loose > 0 then take_loose(topic, loose, scores) end
    loose_left = loose_left - #loose
    return #found > 0 and loose_left > 0
  end

  -- Lease the first messages, up to where blocks and loose messages meet; false without any.
  local function take_some(topic)
    local found = call('ZRANGE', KEY.ready .. topic, 0, math.min(left, 8 * step))
    local loose = {}
    for i = 1, #found do
      if #found[i] == 13 then
        loose[#loose + 1] = found[i]
      elseif #loose > 0 or left <= 0 or bytes_left <= 0 then
        break
      elseif not take_block(topic, found[i], found[i + 1]) then
        break
      end
      if left <= #loose or #loose >= math.min(loose_left, step) then break end
    end
    if #loose > 0 then take_loose(topic, loose) end
    loose_left = loose_left - #loose
    return #found > 0 and loose_left > 0
  end

  for i = rest, is_settled and 0 or #ARGV do
    local is_planned = not settings(ARGV[i]).paused
    if is_planned and (is_laned(ARGV[i]) or call('HGET', KEY.known, ARGV[i]) == 'mixed') then
      return {'again', finish()}
    end
  end
  for i = rest, #ARGV do
    if not settings(ARGV[i]).paused and not is_formed(ARGV[i]) then return {'again', finish()} end
  end
  for i = rest, #ARGV do
    local topic = ARGV[i]
    if not settings(topic).paused then
      local take_next = is_laned(topic) and take_of_lanes or take_some
      local wanted = left
      left = math.min(left, allowed(topic))
      local bound = left
      while left > 0 and bytes_left > 0 and loose_left > 0 and take_next(topic) do end
      spend(topic, bound - left)
      if turn then
        many('ZADD', KEY.turns .. topic, turns_of)
        move_turns(topic, turn, use_turns(topic, taken_of))
        turn, taken_of, turns_of = nil, {}, {}
      end
      left = wanted - bound + left
    end
  end
  many('HSET', KEY.messages, fields)
  many('ZADD', KEY.leased, leases)
  local word = loose_left > 0 and 'ok' or 'more'
  local said = {word}
  for i = 1, #entries, 2 do
    said[#said + 1] = entries[i]
    said[#said + 1] = ''
  end
  answer(said)
  return {word, entries, finish()}
end)
