-- Places: which numbers exist, 512 in a set of small integers.
local enter, leave
do
local function by_dir(numbers)
  local dirs = {}
  for i = 1, #numbers do
    local dir = floor(numbers[i] / 512)
    local of = dirs[dir]
    if not of then of = {}; dirs[dir] = of end
    of[#of + 1] = numbers[i] % 512
  end
  return dirs
end

function enter(numbers)
  for dir, of in pairs(by_dir(numbers)) do
    call('SADD', KEY.dir .. dir, unpack(of))
    call('ZADD', KEY.dirs, dir, dir)
  end
end

function leave(numbers)
  for dir, of in pairs(by_dir(numbers)) do
    call('SREM', KEY.dir .. dir, unpack(of))
    if call('EXISTS', KEY.dir .. dir) == 0 then call('ZREM', KEY.dirs, dir) end
  end
end
end

local function member(n) return pack('>I7', n) end
