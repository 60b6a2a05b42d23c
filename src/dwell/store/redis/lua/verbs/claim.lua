-- Let the shard belong to the store of this call if it belongs to none, or in any case where `is_forced` is '1'; `config` is
-- what the instances of the store agree on. Answers {the number of the store that it belongs to, finish()}.
verb('claim', 2, function(config, is_forced)
  local was = META.store
  if was ~= META.own and was and is_forced ~= '1' then return {was, {now, 0, {}}} end
  call('HSET', KEY.meta, 'store', META.own, 'config', config)
  lives.check()
  return {META.own, finish()}
end)
