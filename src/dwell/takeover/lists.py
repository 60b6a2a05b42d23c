"""Lists in a Redis whose values other programs push and pop while some are removed."""

from collections.abc import Awaitable, Callable, Sequence

from dwell.takeover.jobs import Job

#: How many values are read from a list at a time at most.
_CHUNK = 50
#: The result of a removal of a value that is not near its place, and the place that is none.
_FAR, _NOWHERE = 3, -1

#: The function ``removed`` in Lua: removes values that were read from a list, and returns for each
#: 1 if it is removed, 2 if ``may(at)`` is false, and 0 if it is there no longer or, with ``once``,
#: if the same value was removed before it.
#:
#: ``sign`` is 1 where places count from the first value, and -1 from the last; ``start`` is the
#: place of the read. Values are found around it, overwritten, and removed in one pass, as an LREM
#: for each would pass all values in front of them each time. The result is 3 for those that are not
#: found there; with a ``start`` of -1, LREM looks for each in the whole list.
REMOVED = f"""
local function places_of(key, sign, start, size, values)
  local wanted, places, missing, first, last = {{}}, {{}}, #values, start, start
  local step = math.min({_CHUNK}, #values)
  for _, value in ipairs(values) do
    wanted[value], places[value] = (wanted[value] or 0) + 1, {{}}
  end
  local function look(from, to)
    if from == to then return end
    local found
    if sign == 1 then
      found = redis.call('LRANGE', key, from, to - 1)
    else
      found = redis.call('LRANGE', key, -to, -from - 1)
    end
    for at, value in ipairs(found) do
      if wanted[value] and wanted[value] > 0 then
        wanted[value], missing = wanted[value] - 1, missing - 1
        table.insert(places[value], sign == 1 and from + at - 1 or at - 1 - to)
      end
    end
  end
  while missing > 0 and (first > 0 or last < size) and last - first < 4 * #values do
    local before, after = math.max(first - step, 0), math.min(last + step, size)
    look(last, after)
    look(before, first)
    first, last = before, after
  end
  return places
end

local function removed(key, sign, start, values, once, may)
  local results, taken, count, mark = {{}}, {{}}, 0, 'removed by dwell'
  local size = redis.call('LLEN', key)
  local is_far, places = start == {_NOWHERE}, {{}}
  start = math.min(start, size)
  if not is_far then places = places_of(key, sign, start, size, values) end
  local function is_taken(at) return once and taken[values[at]] end
  -- A Redis without free memory allows LSET only after another write.
  redis.call('LTRIM', key, 0, -1)
  for at, value in ipairs(values) do
    local place = table.remove(places[value] or {{}})
    if place then
      results[at] = is_taken(at) and 0 or 2
      if not is_taken(at) and may(at) then
        redis.call('LSET', key, place, mark)
        results[at], taken[value], count = 1, true, count + 1
      end
    end
  end
  if count > 0 then
    redis.call('LREM', key, (start * 2 < size and sign or -sign) * count, mark)
  end
  for at, value in ipairs(values) do
    if not results[at] then
      if is_taken(at) then
        results[at] = 0
      elseif not may(at) then
        results[at] = 2
      elseif is_far then
        results[at] = redis.call('LREM', key, sign, value)
      else
        results[at] = {_FAR}
      end
    end
  end
  return results
end
"""


async def removed_all(
    remove: Callable[[Sequence[Job], int], Awaitable[Sequence[int]]],
    jobs: Sequence[Job],
    start: int,
) -> Sequence[int]:
    """Return the results of removals from a list at a place, then anywhere.

    The latter are one by one, so that others get answers in between.
    """
    told = list(await remove(jobs, start))
    for at, result in enumerate(told):
        if result == _FAR:
            (told[at],) = await remove(jobs[at : at + 1], _NOWHERE)
    return told
