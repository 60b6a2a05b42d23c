"""Problems: errors as RFC 9457 writes them, and back again as the classes of :mod:`dwell.errors`.

A problem's ``error`` is the class name. Of a class that a client does not know, the status says
enough to choose the nearest.
"""

import msgspec

from dwell import errors
from dwell.errors import DwellError, InvalidInput, StoreError

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:dwell:error:"

#: The status of each class; a class that is not listed has its nearest parent's.
STATUSES: dict[type[DwellError], int] = {
    DwellError: 500,
    errors.InvalidInput: 400,
    errors.BatchTooLarge: 413,
    errors.IdExists: 409,
    errors.TopicFull: 409,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.StoreError: 500,
    errors.StoreClosed: 503,
    errors.DiskFull: 507,
    errors.StoreFull: 507,
    errors.StoreFailed: 503,
    errors.ServerBusy: 429,
    errors.ServerDraining: 503,
}

#: The limit of a detail in an answer: it may quote the request, which may be megabytes.
MOST_DETAIL_CHARS = 2000

#: Seconds that a client should wait before a retry, for statuses where a retry may help.
RETRY_AFTER_S = {429: 1, 503: 5}

CLASSES: dict[str, type[DwellError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, DwellError)
}


class Problem(msgspec.Struct, omit_defaults=True):
    """An error, as a server writes it."""

    type: str
    title: str
    status: int
    detail: str
    error: str = ""
    partly: bool = False


def cut(detail: str) -> str:
    """Return the first characters of a detail, up to the limit."""
    if len(detail) <= MOST_DETAIL_CHARS:
        return detail
    return f"{detail[:MOST_DETAIL_CHARS]} ... ({len(detail)} characters)"


def status_of(error: DwellError) -> int:
    """Return the status that a server answers an error with."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def problem_of(error: DwellError) -> Problem:
    """Return an error as a problem."""
    name = type(error).__name__
    title = (type(error).__doc__ or name).split("\n")[0].rstrip(".")
    detail, is_partly = cut(str(error)), error.is_partly
    return Problem(f"{_TYPE}{name}", title, status_of(error), detail, name, is_partly)


def error_of(status: int, body: bytes) -> DwellError | None:
    """Return the error of a problem; None if it is not from a Dwell server."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not problem.type.startswith(_TYPE):
        return None
    known = CLASSES.get(problem.error)
    if known is None:
        known = InvalidInput if 400 <= status < 500 else StoreError
    error = known(problem.detail)
    error.is_partly = problem.partly
    return error
