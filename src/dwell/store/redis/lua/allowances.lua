-- Allowances: how many messages of a topic may be taken now. The shards share its limits evenly. A rate is a bucket of
-- tokens, as in dwell/store/allowances.py; `tokens` among the counts are the tokens left at `tokens_ms`, and `again_ms`
-- is when takers are woken for more.
local function tokens_of(topic, rate)
  local most = math.max(rate / 10, 1)
  local of = call('HMGET', KEY.counts .. topic, 'tokens', 'tokens_ms')
  local at = tonumber(of[2] or now)
  if at > now then
    call('HSET', KEY.counts .. topic, 'tokens_ms', now)
    at = now
  end
  return math.min(tonumber(of[1] or most) + rate * (now - at) / 1000, most)
end

-- Return how many messages may be taken.
local function allowed(topic)
  local of, bound = settings(topic), math.huge
  if (of.most_leased or 0) > 0 then
    local leased = tonumber(call('HGET', KEY.counts .. topic, 'leased') or 0)
    local changes = counts[topic] and counts[topic].leased or 0
    bound = math.max(math.ceil(of.most_leased / SHARDS) - leased - changes, 0)
  end
  if (of.rate or 0) > 0 then bound = math.min(bound, floor(tokens_of(topic, of.rate / SHARDS))) end
  return bound
end

local function keep_tokens(topic, left) call('HSET', KEY.counts .. topic, 'tokens', left, 'tokens_ms', now) end

-- Tell whether a topic has messages that may be taken, limits aside.
local function has_more(topic) return call('ZCOUNT', KEY.ready .. topic, '-inf', UNPARKED) > 0 end

-- Note that messages were taken. If there are more, wake takers for the present allowance, because this one may have
-- come late and no taker was woken for the rest; and note when the allowance will grow.
local function spend(topic, number)
  local rate = (settings(topic).rate or 0) / SHARDS
  if rate <= 0 then return end
  local left = tokens_of(topic, rate) - number
  if number > 0 then keep_tokens(topic, left) end
  if not has_more(topic) then return end
  if number > 0 then wake(topic, floor(left)) end
  local missing = math.max(rate / 100, 1) - left
  if missing > 0 then
    call('HSET', KEY.counts .. topic, 'again_ms', now + math.ceil(missing * 1000 / rate))
    touched[topic] = true
  end
end

-- Wake takers for messages that a rate held back; with `is_back` at any time.
local function come_again(topic, is_back)
  if (settings(topic).rate or 0) == 0 then return end
  local again = tonumber(call('HGET', KEY.counts .. topic, 'again_ms') or nil)
  if not again or (again > now and not is_back) then return end
  call('HDEL', KEY.counts .. topic, 'again_ms')
  touched[topic] = true
  wake(topic, math.max(allowed(topic), 1))
end

local function again_ms(topic)
  return (settings(topic).rate or 0) > 0 and tonumber(call('HGET', KEY.counts .. topic, 'again_ms') or nil) or nil
end
