"""The app: from the head of a request to its answer, and from an error to a problem."""

import logging
from functools import cache

import msgspec

from dwell.errors import DwellError
from dwell.queue.calling import begin
from dwell.server.http.answer import Answer, problem, refused
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.call import Call
from dwell.server.http.console import CONSOLE
from dwell.server.http.delivery import Delivery
from dwell.server.http.endpoint import Endpoint
from dwell.server.http.media import Media
from dwell.server.http.notes import Notes
from dwell.server.http.openapi import document
from dwell.server.http.page import page, policy
from dwell.server.http.routes import NotAllowed, Routes
from dwell.server.http.waits import Waits
from dwell.server.service import Service
from dwell.wire.problems import problem_of

_log = logging.getLogger(__name__)


async def openapi(call: Call) -> Answer:
    """Return the OpenAPI document."""
    return Answer(_document(), Media.JSON)


@cache
def _document() -> bytes:
    return msgspec.json.encode(document())


async def docs(call: Call) -> Answer:
    """Return the docs page, which runs no script and loads nothing."""
    answer = Answer(page(), "text/html; charset=utf-8")
    answer.headers["content-security-policy"] = policy()
    answer.headers["x-content-type-options"] = "nosniff"
    return answer


_DOCUMENTS = (
    Endpoint("GET", "/openapi.json", openapi, (), gives=()),
    Endpoint("GET", "/docs", docs, (), gives=()),
)


class App:
    """The application over a service."""

    def __init__(self, service: Service, waits: Waits) -> None:
        self._service = service
        self._waits = waits
        self.notes = Notes(service)
        self._routes = Routes((*ENDPOINTS, *_DOCUMENTS, *CONSOLE))

    def now_ms(self) -> int:
        """Return the time of the server."""
        return self._service.queue.clock.now_ms()

    def call(
        self, method: str, target: bytes, headers: dict[bytes, bytes], delivery: Delivery
    ) -> Call:
        """Return the call of a request whose head has come; raises Refusal if no route matches."""
        route = self._routes.find(method, target)
        return Call(self._service, self._waits, route, headers, delivery)

    def begin(self, call: Call) -> None:
        """Admit a request; if that raises, :meth:`refusal` makes the answer."""
        call.enter()
        try:
            call.check()
        except Exception:
            call.leave()
            raise

    async def answer(self, call: Call) -> Answer:
        """Return the answer to a complete request, which counts as in flight until then."""
        try:
            # Rights may have ended while the body was received.
            call.authorize()
            begin(call.calling)
            if not call.endpoint.is_long:
                return await call.endpoint.handler(call)
            async with call.looking():
                answer = await call.endpoint.handler(call)
                # A slow result is not shown to a caller whose rights ended during the search.
                call.check_again()
                return answer
        except Exception as error:
            call.give_back()
            return self.refusal(error, call)
        finally:
            call.leave()

    def refusal(self, error: Exception, call: Call | None = None) -> Answer:
        """Return the answer to a request that came to nothing."""
        answer = refused(error)
        if answer is None:
            place = "a request" if call is None else call.endpoint.name
            _log.error("%s failed", place, exc_info=error)
            answer = problem(problem_of(DwellError(f"{type(error).__name__}: {error}")))
        if isinstance(error, NotAllowed):
            answer.headers["allow"] = error.methods
        return answer
