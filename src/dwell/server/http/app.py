"""The app: from a request to its endpoint, and from an error to a problem."""

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send

from dwell.errors import DwellError
from dwell.server.http.api import ENDPOINTS
from dwell.server.http.call import Call
from dwell.server.http.endpoint import Endpoint
from dwell.server.http.openapi import document
from dwell.server.http.page import page
from dwell.server.http.waits import Waits
from dwell.server.service import Service
from dwell.wire import problems
from dwell.wire.problems import Problem, problem_of

_log = logging.getLogger(__name__)


class _Endpoint:
    """One endpoint as an ASGI application."""

    def __init__(self, service: Service, waits: Waits, endpoint: Endpoint) -> None:
        self._service = service
        self._waits = waits
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._service, self._waits, self._endpoint, scope, receive)
        try:
            answer = await self._answer(call)
            now_ms = self._service.queue.clock.now_ms()
            answer.raw_headers.append((b"dwell-now-ms", b"%d" % now_ms))
            await answer(scope, receive, send)
            call.deliver()
        finally:
            call.give_back()

    async def _answer(self, call: Call) -> Response:
        if self._endpoint.right is None:
            # Who looks after the server is told how it is even when it can do no more.
            return await self._handled(call)
        gate = self._service.gate
        try:
            gate.enter()
        except DwellError as error:
            return problem(problem_of(error))
        try:
            return await self._handled(call)
        finally:
            gate.leave(call.size_bytes)

    async def _handled(self, call: Call) -> Response:
        try:
            call.check()
            return await self._endpoint.handler(call)
        except Exception as error:
            call.give_back()
            return self._refusal(error)

    def _refusal(self, error: Exception) -> Response:
        """Return the answer to a call that came to nothing."""
        if isinstance(error, DwellError):
            return problem(problem_of(error))
        if isinstance(error, HTTPException):
            return problem(_of_http(error))
        if isinstance(error, MemoryError):
            return problem(_NO_MEMORY)
        _log.error("%s %s failed", self._endpoint.method, self._endpoint.path, exc_info=error)
        return problem(problem_of(DwellError(f"{type(error).__name__}: {error}")))


def problem(what: Problem) -> Response:
    """Return a problem as an answer."""
    headers = {}
    if what.status in problems.RETRY_AFTER_S:
        headers["retry-after"] = str(problems.RETRY_AFTER_S[what.status])
    if what.status == 401:
        headers["www-authenticate"] = "Bearer"
    data = msgspec.json.encode(what)
    return Response(data, what.status, headers, media_type=problems.MEDIA_TYPE)


def _of_http(error: HTTPException) -> Problem:
    return Problem(
        "about:blank", _TITLES.get(error.status_code, ""), error.status_code, error.detail
    )


#: Made beforehand, as there may be no memory to make it in.
_NO_MEMORY = Problem(
    "urn:dwell:error:StoreError",
    "The server has no memory left",
    503,
    "there was no memory for this request: it may have been done or not",
    "StoreError",
)

_TITLES = {
    404: "There is nothing here",
    405: "The method is not one of this resource's",
    406: "No form of the answer is acceptable",
    415: "The form of the body is not one that is taken",
}


class App:
    """The application over a service."""

    def __init__(self, service: Service, waits: Waits) -> None:
        served = [(e, _Endpoint(service, waits, e)) for e in ENDPOINTS]
        routes = [Route(e.path, app, methods=[e.method], name=e.name) for e, app in served]
        routes += [Route("/openapi.json", _openapi), Route("/docs", _docs)]
        for route in routes:
            # A HEAD would be answered with a body; the API has none.
            (route.methods or set()).discard("HEAD")
        self._router = Router(routes, redirect_slashes=False)
        # The router looks through its routes one by one, which paths without parts to read spare.
        self._plain = {(e.method, e.path): app for e, app in served if "{" not in e.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        plain = self._plain.get((scope.get("method", ""), scope.get("path", "")))
        if plain is not None:
            scope["path_params"] = {}
            return await plain(scope, receive, send)
        # The router raises what it refuses only inside of an application.
        scope["app"] = self
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            answer = problem(_of_http(error))
            if error.status_code == 405:
                answer.headers["allow"] = ", ".join(self._methods(scope))
            await answer(scope, receive, send)

    def _methods(self, scope: Scope) -> list[str]:
        """Return the methods of the resource that a path names."""
        found: set[str] = set()
        for route in self._router.routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                found |= route.methods or set()
        return sorted(found)


async def _openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(msgspec.json.encode(document()), media_type="application/json")


async def _docs(request: Request) -> Response:
    """Return the docs page."""
    return Response(page(), media_type="text/html")
