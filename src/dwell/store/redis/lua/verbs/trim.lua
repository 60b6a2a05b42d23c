-- Drop events up to a position, which were moved into the log. Answers {'ok', finish()}.
verb('trim', 1, function(position)
  call('XTRIM', KEY.events, 'MINID', '=', position .. '-1')
  return {'ok', finish()}
end)
