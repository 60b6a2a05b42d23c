-- Assign the shard to the store of this call if it belongs to none, or, if `is_forced` is '1', to one from before a
-- reshard: a run of a reshard that stood still takes nothing from a later one. `config` is the agreement of the store's
-- instances. `place` is the key of the agreement for all shards, or '' if that may be on another node: a call in
-- progress while the engine lost everything must not bring back the number of the lost store.
-- Answers {the number of the store that it belongs to, or '' if the store is gone, finish()}.
verb('claim', 3, function(config, is_forced, place)
  local was = META.store
  if not was and place ~= '' and is_forced ~= '1' then
    local agreed = call('GET', place)
    if not agreed or cmsgpack.unpack(agreed)[2] ~= tonumber(META.own) then return {'', {now, 0, {}}} end
  end
  if was and was ~= META.own then
    local copy = call('HGET', KEY.meta, 'config')
    local is_older = not copy or (cmsgpack.unpack(copy)[5] or 0) < (cmsgpack.unpack(config)[5] or 0)
    if is_forced ~= '1' or not is_older then return {was, {now, 0, {}}} end
  end
  call('HSET', KEY.meta, 'store', META.own, 'config', config)
  lives.check()
  return {META.own, finish()}
end)
