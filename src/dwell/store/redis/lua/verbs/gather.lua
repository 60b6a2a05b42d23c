-- Move events of a shard into the log, unless another instance has: from `moved`, in the form of `gathered`, to the
-- position `ends` of the life `life`. The shard has `lost` events that were never read, or that were undone, whose
-- positions stay empty. The list: count, time in ms and text of each entry. Answers {'ok', or 'moved' if another
-- instance has moved events since `gathered`; finish()}.
verb('gather', 5, kept(function(shard, moved, ends, life, lost)
  local name = KEY.gathered
  if (call('HGET', name, shard) or '0') ~= moved then return {'moved', finish()} end
  call('HINCRBY', KEY.meta, 'logged', lost)
  for i = rest, #ARGV, 3 do
    local last = call('HINCRBY', KEY.meta, 'logged', ARGV[i])
    local oldest = last - MAX_EVENTS * SHARDS
    if oldest > 0 then call('XTRIM', KEY.log, 'MINID', '~', oldest .. '-1') end
    call('XADD', KEY.log, last .. '-0', 'n', ARGV[i], 't', ARGV[i + 1], 'e', ARGV[i + 2], 's', shard)
  end
  call('HSET', name, shard, ends .. ':' .. life)
  return {'ok', finish()}
end))
