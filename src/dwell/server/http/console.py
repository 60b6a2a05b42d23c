"""The console over HTTP: static files that a browser may run, but only from this server.

They contain no data of the store: a page requests its data with the token of its user, so the files
are public. No other site may frame the pages, open them to control them, or see what they load.
"""

from dwell.server.console.files import INDEX, pages
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.call import Call
from dwell.server.http.endpoint import Endpoint

#: The content security policy of a page: it runs files and sends requests of this server only.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


async def begin(call: Call) -> Answer:
    """Redirect to the folder of the files."""
    answer = Answer(b"", "text/plain; charset=utf-8", 307)
    answer.headers |= {**_HEADERS, "location": "console/"}
    return answer


async def file(call: Call) -> Answer:
    """Return a file of the console."""
    found = pages().get(call.path["file"] or INDEX)
    if found is None:
        raise Refusal(404, "Not Found")
    answer = Answer(*found)
    answer.headers |= _HEADERS
    return answer


CONSOLE = (
    Endpoint("GET", "/console", begin, (), gives=()),
    Endpoint("GET", "/console/{file:path}", file, (), gives=()),
)
