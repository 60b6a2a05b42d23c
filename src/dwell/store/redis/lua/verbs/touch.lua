-- Move the ends of leases; `lease_ms` is 0 for each message's own. The list: groups of receipts as in ack. Answers {a
-- byte for each receipt: touched or stale; finish()}, for the first groups only when messages are large.
verb('touch', 1, kept(function(lease_ms)
  settle()
  lease_ms = tonumber(lease_ms)

  local function touch(n, r)
    r = hold(n, r)
    r.ends = lease_end(lease_ms, r.lease, r.topic)
    call('ZADD', KEY.leased, r.ends, member(n))
    save(n, r)
    return RESULT.touched
  end

  -- Touch a block that the receipts name as a whole; nil when they do not.
  local function touch_block(group)
    local n, take = unpack_from('>I7I4', group)
    local b = held_block(n, take)
    if not b or not is_whole(n, b, group:sub(12)) then return nil end
    local ends = lease_end(lease_ms, b.lease, b.topic)
    call('SETRANGE', block_key(n), BLOCK.ends_at, pack('>I6', ends))
    call('ZADD', KEY.leased, ends, member(n) .. 'b')
    return string.rep(RESULT.touched, b.live)
  end

  return {each_receipt(touch, touch_block), finish()}
end))
