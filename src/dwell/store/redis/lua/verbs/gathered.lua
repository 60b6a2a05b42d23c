-- Return the position up to which a shard's events were moved into the log, and the name of the life of the last of
-- them. Answers {'position:name', or '0' or a position alone; finish()}.
verb('gathered', 1, function(shard)
  return {call('HGET', KEY.gathered, shard) or '0', finish()}
end)
