-- Let the shard belong to the store of this call if it belongs to none, or in any case where `is_forced` is '1'; `config` is
-- what the instances of the store agree on. Answers {the number of the store that it belongs to, finish()}.
verb('claim', 2, function(config, is_forced)
  local was = META.store
  if was ~= META.own and was and is_forced ~= '1' then return {was, {now, 0, {}}} end
  if was ~= META.own then
    -- What is put from here on is newer than all that the store before had.
    call('HSET', KEY.meta, 'store', META.own, 'claimed', call('HGET', KEY.meta, 'block') or 0)
  end
  lives.check()
  call('HSET', KEY.meta, 'config', config)
  return {META.own, finish()}
end)
