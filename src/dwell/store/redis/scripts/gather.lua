-- Move events of a shard into the log, unless another instance has.
-- ARGV: 7 shard; 8 up to which position they were moved before; 9 up to which they are now; 10 how
-- many the shard has dropped before anybody read them, whose positions stay empty; then count, time
-- in ms and text of each entry. Answers {'ok', finish()}.
local said = answered()
if said then return said end
local name, shard = base .. ':gathered', ARGV[7]
if (call('HGET', name, shard) or '0') == ARGV[8] then
  call('HINCRBY', META, 'logged', ARGV[10])
  for i = 11, #ARGV, 3 do
    local ends = call('HINCRBY', META, 'logged', ARGV[i])
    local oldest = ends - MAX_EVENTS * SHARDS
    if oldest > 0 then call('XTRIM', base .. ':log', 'MINID', '~', oldest .. '-1') end
    call('XADD', base .. ':log', ends .. '-0', 'n', ARGV[i], 't', ARGV[i + 1], 'e', ARGV[i + 2], 's', shard)
  end
  call('HSET', name, shard, ARGV[9])
end
return answer({'ok', finish()})
