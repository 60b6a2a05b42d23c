"""A Redis of another system: how its keys are matched, and what its errors become."""

import contextlib
import re
from collections.abc import Iterator

from redis.exceptions import RedisError

from dwell.errors import InvalidUrl, ServerUnreachable


def keys_between(prefix: str, suffix: str) -> str:
    """Return the pattern of keys that begin and end so."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*" + suffix


@contextlib.contextmanager
def understood(where: str) -> Iterator[None]:
    """Raise ServerUnreachable without an answer, InvalidUrl for keys that are not the system's."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidUrl(f"{where}: has a name that is not UTF-8: {error.object!r:.80}") from None
    except (RedisError, OSError) as error:
        if "WRONGTYPE" in str(error):
            raise InvalidUrl(f"{where}: has keys of another system: {error}") from None
        reason = str(error) or type(error).__name__
        raise ServerUnreachable(f"{where}: {reason}") from None
