-- Move events of a shard into the log, unless another instance has: those from the position
-- `moved` to `ends`. The shard has dropped `lost` before anybody read them, whose positions stay empty.
-- The list: count, time in ms and text of each entry. Answers {'ok', finish()}.
verb('gather', 4, kept(function(shard, moved, ends, lost)
  local name = KEY.gathered
  if (call('HGET', name, shard) or '0') == moved then
    call('HINCRBY', KEY.meta, 'logged', lost)
    for i = rest, #ARGV, 3 do
      local last = call('HINCRBY', KEY.meta, 'logged', ARGV[i])
      local oldest = last - MAX_EVENTS * SHARDS
      if oldest > 0 then call('XTRIM', KEY.log, 'MINID', '~', oldest .. '-1') end
      call('XADD', KEY.log, last .. '-0', 'n', ARGV[i], 't', ARGV[i + 1], 'e', ARGV[i + 2], 's', shard)
    end
    call('HSET', name, shard, ends)
  end
  return {'ok', finish()}
end))
