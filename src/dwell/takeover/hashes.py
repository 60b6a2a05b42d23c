"""Systems in a Redis that keep each job in a hash, and its id in a list or a sorted set."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from dwell.takeover.jobs import MOST_BYTES, Job, JobsPlace, Part
from dwell.takeover.lists import REMOVED, removed_all

#: Reads jobs, at least one, until their fields fill ARGV[1] bytes: KEYS[1] is their prefix, the
#: other arguments are their ids. Returns for each a digest of its marks, whether others wait for
#: it, and its fields; nothing for what is no job.
_READ = """
local results, size = {}, 0
for at = 2, #ARGV do
  local key, fields = KEYS[1] .. ARGV[at], {}
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then
    fields = {'', 0, false}
  elseif kind == 'hash' then
    for _, field in ipairs({%(fields)s}) do size = size + redis.call('HSTRLEN', key, field) end
    if size > tonumber(ARGV[1]) and at > 2 then break end
    fields = redis.call('HMGET', key, %(fields)s)
    %(more)s
    table.insert(fields, 1, %(waited)s)
    table.insert(fields, 1, digest(key))
  end
  results[#results + 1] = fields
end
return results
"""

#: Removes jobs that are as they were: KEYS are the part and the prefix of jobs, ARGV the place of
#: the read in a list, and for each job its id, its score, empty in a list, and the digest of its
#: marks. Returns for each 1 if it is removed, 2 if it has changed or others wait for it, and 0 if
#: it is there no longer.
_REMOVE = """
local ids, results = {}, {}
for at = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[at] end
local function may(at)
  local key = KEYS[2] .. ids[at]
  return digest(key) == ARGV[3 * at + 1] and %(waited)s ~= 1
end
if ARGV[3] == '' then
  results = removed(KEYS[1], %(sign)s, tonumber(ARGV[1]), ids, true, may)
else
  for at, id in ipairs(ids) do
    local found = redis.call('ZSCORE', KEYS[1], id)
    if not found then
      results[at] = 0
    elseif may(at) and tonumber(found) == tonumber(ARGV[3 * at]) then
      results[at] = redis.call('ZREM', KEYS[1], id)
    else
      results[at] = 2
    end
  end
end
for at, id in ipairs(ids) do
  if results[at] == 1 then
    local key = KEYS[2] .. id
    %(forget)s
  end
end
return results
"""

_DIGEST = """
local function digest(key)
  local texts = {}
  for at, value in ipairs(redis.call('HMGET', key, %(marks)s)) do
    texts[at] = value and #value .. ' ' .. value or ''
  end
  return redis.sha1hex(table.concat(texts, ','))
end
"""


class Fields(NamedTuple):
    """How a system keeps a job in the hash ``key``.

    A change of a field in ``marks`` is a change of the job; the first has its data. ``texts`` are
    read as well. ``waited`` is in Lua, and 1 while others wait for the job; ``forget`` is in Lua,
    too, and removes all of the job ``id`` but its place in a list or a set. With ``has_left`` the
    milliseconds after which Redis forgets the job follow the fields, -1 for never.
    """

    marks: tuple[str, ...]
    texts: tuple[str, ...] = ()
    waited: str = "0"
    forget: str = "redis.call('DEL', key)"
    has_left: bool = False


class HashesPlace(JobsPlace):
    """Queues whose jobs are hashes, of the fields that ``FIELDS`` says."""

    FIELDS: ClassVar[Fields]
    _read_script: ClassVar[str]
    _remove_script: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Make the scripts of a system."""
        marks, texts, waited, forget, has_left = cls.FIELDS
        words = {
            "marks": _quoted(marks),
            "fields": _quoted(marks + texts),
            "waited": waited,
            "forget": forget,
            "more": "fields[#fields + 1] = redis.call('PTTL', key)" if has_left else "",
            "sign": -1 if cls.TAKES_LAST else 1,
        }
        cls._read_script = (_DIGEST + _READ) % words
        cls._remove_script = (_DIGEST + REMOVED + _REMOVE) % words

    @abstractmethod
    def prefix_of(self, queue: str) -> str:
        """Return the prefix of the hashes of a queue's jobs."""

    async def data_of(self, part: Part, jobs: Sequence[Job]) -> Sequence[Sequence[Any]]:
        """Return the digest of each job, whether others wait for it, and its fields."""
        ids = [job.id for job in jobs]
        prefix = self.prefix_of(part.queue)
        told: Sequence[Sequence[Any]] = await self._client.eval(
            self._read_script, 1, prefix, MOST_BYTES, *ids
        )
        return told

    async def remove(self, part: Part, jobs: Sequence[Job]) -> Sequence[int]:
        """Remove jobs with their hashes."""

        async def remove(jobs: Sequence[Job], start: int) -> Sequence[int]:
            given: list[object] = [start]
            for job in jobs:
                given += [job.id, "" if job.score is None else repr(job.score), job.mark]
            told: Sequence[int] = await self._client.eval(
                self._remove_script, 2, part.key, self.prefix_of(part.queue), *given
            )
            return told

        return await removed_all(remove, jobs, self._start)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
