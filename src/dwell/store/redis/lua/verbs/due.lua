-- Count some delayed messages of a topic by due: `number` spans of `span` ms from `start` on. `where` is where to
-- continue, '' at first. Answers {pairs of span and count; where to continue, '' at the end; finish()}, or {'again',
-- finish()}.
verb('due', 5, looking(function(topic, start, span, number, where)
  start, span, number = tonumber(start), tonumber(span), tonumber(number)
  local name, found, MOST = KEY.delayed .. topic, {}, LIMITS.scanned
  local widest = tonumber(call('HGET', KEY.counts .. topic, 'span') or 0)
  local ending = start + span * number

  local function add(place, count)
    if count > 0 and place >= 0 and place < number then found[place] = (found[place] or 0) + count end
  end

  local function add_block(n)
    local b = head_at(n)
    local first, last = floor((b.due - start) / span), floor((b.last - start) / span)
    if first == last then return add(first, b.live) end
    local index = index_at(n, b)
    for slot = 0, b.size - 1 do
      if index[3 * slot + 1] == 0 then add(floor((index[3 * slot + 2] - start) / span), 1) end
    end
  end

  -- Without blocks the engine itself counts, span after span.
  local function count_loose(from)
    local stop = math.min(from + MOST, number)
    for place = from, stop - 1 do
      local low = start + span * place
      add(place, call('ZCOUNT', name, string.format('%.0f', low), string.format('(%.0f', low + span)))
    end
    return stop < number and 'span ' .. stop or ''
  end

  -- Otherwise entries are walked by rank. Messages can be in blocks that begin before the first span.
  local function walk(from)
    from = from or call('ZCOUNT', name, '-inf', string.format('(%.0f', start - widest))
    local entries, cost = call('ZRANGE', name, from, from + MOST - 1, 'WITHSCORES'), 0
    for i = 1, #entries, 2 do
      local due = tonumber(entries[i + 1])
      if due >= ending then return '' end
      if cost >= MOST then return 'rank ' .. string.format('%.0f', from + (i - 1) / 2) end
      if #entries[i] > 11 then
        add_block((unpack_from('>I7', entries[i])))
        cost = cost + 5
      else
        add(floor((due - start) / span), 1)
        cost = cost + 1
      end
    end
    return #entries == 2 * MOST and 'rank ' .. string.format('%.0f', from + MOST) or ''
  end

  local way, at = where:match('^(%a+) (%d+)$')
  local is_loose = tonumber(call('HGET', KEY.counts .. topic, 'delayed') or 0) == call('ZCARD', name)
  if way == 'span' or (not way and is_loose) then
    where = count_loose(tonumber(at) or 0)
  else
    where = walk(tonumber(at))
  end
  local pairs_of = {}
  for place, count in pairs(found) do
    pairs_of[#pairs_of + 1] = place
    pairs_of[#pairs_of + 1] = count
  end
  return {pairs_of, where, finish()}
end))
