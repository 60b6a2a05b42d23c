-- Lives: a life of a shard starts with the first call that a process of the engine runs on it, because the process may
-- have loaded older data than the last one had, or none; and with the first call after it became the master again,
-- because it may have received older data before. No two lives use the same names: numbers of blocks continue behind
-- all that a lost end of the previous life can have used, takes grow by another step, and lost events belong to a life
-- with another name. `meta` has the lives, each as {name, the last block before it, how many blocks were skipped up to
-- it, the position of its first event in the shard, and in the log of all shards if there is one}.
do
-- More blocks than one shard creates in a millisecond, and the least that is skipped.
local BLOCKS_PER_MS, LEAST_SKIPPED, YEAR_MS = 64, 2^16, 3.2e10
local known

-- Return the process, and its history of replication, which changes when it becomes a master. Data copied to a replica
-- as a whole include this library, so the cached values are checked again.
local function engine()
  if not known then
    local replication = call('INFO', 'replication'):match('master_replid:(%x+)') or ''
    known = call('INFO', 'server'):match('run_id:(%x+)') .. ' ' .. replication
  end
  return known
end

function lives.all()
  local text = call('HGET', KEY.meta, 'lives')
  return text and cmsgpack.unpack(text) or {}
end

local function begin_life()
  local of = call('HMGET', KEY.meta, 'block', 'position', 'logged')
  local all, block, position = lives.all(), tonumber(of[1] or 0), tonumber(of[2] or 0)
  local drawn = redis.sha1hex(table.concat({INSTANCE, SERIAL, string.format('%.0f', now), engine()}, ' '))
  local function number(from, digits) return tonumber(drawn:sub(from, from + digits - 1), 16) end
  -- A new shard starts at a random number, so that it reuses no names from before a loss of everything.
  local skipped = number(1, 9)
  if #all == 0 and block > 0 then all[1] = {string.format('%08x', META.own), 0, 0, 0, false} end
  if #all > 0 then
    skipped = LEAST_SKIPPED + math.min(math.max(now - META.seen, 0), YEAR_MS) * BLOCKS_PER_MS
  end
  local gap = (#all > 0 and all[#all][3] or 0) + skipped
  local life = {string.format('%08x', number(10, 8)), block + skipped, gap, position, tonumber(of[3] or nil) or false}
  -- A life without puts and events is not kept.
  local last = all[#all]
  local is_empty = last and last[2] == block and last[4] == life[4] and last[5] == life[5]
  all[is_empty and #all or #all + 1] = life
  META.engine, META.step = engine(), number(18, 8)
  META.step = META.step - META.step % 2 + 1
  -- Settings may be older than in other shards, or lost.
  if SHARDS > 1 then call('HSET', KEY.unsettled, '', life[1]) end
  call('HSET', KEY.meta, 'lives', cmsgpack.pack(all), 'block', life[2], 'engine', META.engine, 'step', META.step)
end

-- Start a life when another process of the engine runs the call than before.
function lives.check()
  if META.engine ~= engine() then begin_life() end
end

-- Return the number for a take of a message. It grows by a step of the life, so that no receipt of a lost take fits a
-- later one.
function lives.next_take(take) return (take + META.step) % 2^32 end

-- Places are numbers without the skipped blocks; these two convert in both directions.
function lives.place_of(n, all)
  local first
  for i = #all, 1, -1 do
    if n >= (all[i][2] + 1) * 64 then return math.min(n - 64 * all[i][3], first or math.huge) end
    first = (all[i][2] + 1 - all[i][3]) * 64
  end
  return math.min(n, first or math.huge)
end

function lives.number_at(place, all)
  for i = #all, 1, -1 do
    if place >= (all[i][2] + 1 - all[i][3]) * 64 then return place + 64 * all[i][3] end
  end
  return place
end
end
