-- Return up to which of its positions a shard's events were moved into the log.
-- ARGV: 7 shard. Answers {position, finish()}.
return {call('HGET', base .. ':gathered', ARGV[7]) or '0', finish()}
