-- Return the due of the ready message that has waited longest, for some topics. The list: topics. Answers {for each
-- topic a time in ms, 0 without ready messages, or -1 when only a scan can tell; finish()}, or {'again', finish()}.
verb('oldest', 0, looking(function()
  -- Each priority is in order of due.
  local MOST_PRIORITIES, dues = 16, {}

  local function oldest(topic)
    if is_laned(topic) or settings(topic).forming then return -1 end
    local name, due = KEY.ready .. topic, 0
    local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    for _ = 1, MOST_PRIORITIES do
      if not first[1] then return due end
      local own = unpack_from('>I6', first[1])
      due = due > 0 and math.min(due, own) or own
      local rank = call('ZCOUNT', name, '-inf', first[2])
      first = call('ZRANGE', name, rank, rank, 'WITHSCORES')
    end
    return -1
  end

  for i = rest, #ARGV do dues[#dues + 1] = oldest(ARGV[i]) end
  return {dues, finish()}
end))
