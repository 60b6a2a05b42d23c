-- Forget events that were moved into the log.
-- ARGV: 7 up to which position. Answers {'ok', finish()}.
call('XTRIM', base .. ':events', 'MINID', '=', ARGV[7] .. '-1')
return {'ok', finish()}
