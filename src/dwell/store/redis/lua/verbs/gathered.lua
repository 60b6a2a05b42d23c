-- Return up to which of its positions a shard's events were moved into the log.
-- Answers {position, finish()}.
verb('gathered', 1, function(shard)
  return {call('HGET', KEY.gathered, shard) or '0', finish()}
end)
