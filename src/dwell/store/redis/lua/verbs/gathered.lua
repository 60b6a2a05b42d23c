-- Return up to which of its positions a shard's events were moved into the log, and the name of the life of which the
-- last of them was. Answers {'position:name', or '0' or a position alone; finish()}.
verb('gathered', 1, function(shard)
  return {call('HGET', KEY.gathered, shard) or '0', finish()}
end)
