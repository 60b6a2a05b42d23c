-- Write a new agreement of the store's instances, in the first shard, if the present one is still `known`. Answers
-- {'ok' or 'other', finish()}.
verb('agree', 2, kept(function(known, new)
  local text = call('GET', KEY.store)
  local present, before = text and cmsgpack.unpack(text), cmsgpack.unpack(known)
  local is_same = present and true
  -- An agreement of an older version is shorter.
  for i = 1, #before do is_same = is_same and (present[i] or 0) == before[i] end
  if not is_same then return {'other', finish()} end
  call('SET', KEY.store, new)
  return {'ok', finish()}
end))
