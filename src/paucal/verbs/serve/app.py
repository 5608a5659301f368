"""The web applications: a page that classifies pictures, and a page to label images; every request is checked."""

import asyncio
import json
from collections.abc import Callable, Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paucal.types import UserError
from paucal.verbs.serve.answering import Answerer
from paucal.verbs.serve.labelling import Conflict, Labelling

MAX_WAITING = 16  # pictures held in memory at once
MAX_LABEL_BYTES = 10_000  # limit of a request of the labelling page
PATIENCE = 30.0  # seconds in which a request must arrive
LONGEST_NAME = 200
# Content types that a page of another site cannot send without a CORS preflight, which is never granted.
PICTURES, JSON = ("image/", "application/octet-stream"), ("application/json",)
PAGE_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
LABEL_FILES = {"/": "label.html", "/page.css": "page.css", "/label.css": "label.css", "/label.js": "label.js"}
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def host_name(header: str) -> str:
    """Return the host of a Host header, without its port.

    Example:
        >>> host_name("localhost:8000"), host_name("[::1]:8000")
        ('localhost', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


class Guard:
    """An ASGI application around another one, which only answers requests to some host names; None for any.

    A page of another site can point its own host name at this machine's address (DNS rebinding); its requests still
    carry that name and are refused.
    """

    def __init__(self, app: Any, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        requested_host = host_name(Headers(scope=scope).get("host", ""))
        if self._hosts is not None and requested_host not in self._hosts:
            await PlainTextResponse("this address is not served", 400)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


class RefusedRequest(Exception):
    """A request that is answered with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_app(
    answerer: Answerer, title: str, max_bytes: int, hosts: Collection[str] | None, max_waiting: int = MAX_WAITING
) -> Guard:
    """Return the application that classifies pictures of at most `max_bytes` bytes.

    More than `max_waiting` pictures at once are refused. Requests must name one of the hosts; None for any.
    """
    n_waiting = 0

    async def classify(request: Request) -> Response:
        nonlocal n_waiting
        if n_waiting >= max_waiting:
            headers = {"Retry-After": "1"}
            return JSONResponse({"error": "too many pictures at once: try again in a moment."}, 503, headers)
        n_waiting += 1
        try:
            content = await read_body(request, max_bytes, PICTURES)
            name = request.query_params.get("name", "picture")[:LONGEST_NAME] or "picture"
            explain = request.query_params.get("explain") == "1"
            return JSONResponse(await run_in_threadpool(answerer.answer, content, name, explain))
        finally:
            n_waiting -= 1

    async def about(request: Request) -> Response:
        classes = list(answerer.model.classes)
        return JSONResponse({"title": title, "classes": classes, "several": answerer.model.card.several})

    routes = [Route("/api/model", about), Route("/api/classify", classify, methods=["POST"])]
    return _guarded(PAGE_FILES, routes, hosts)


def make_label_app(labelling: Labelling, hosts: Collection[str] | None) -> Guard:
    """Return the application of the labelling page; `hosts` are as in `make_app`."""

    def post(path: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Route:
        async def respond(request: Request) -> Response:
            content = _parse(await read_body(request, MAX_LABEL_BYTES, JSON))
            try:
                return JSONResponse(await run_in_threadpool(answer, content))
            except OSError as problem:
                return JSONResponse({"error": f"the label was not saved ({problem.strerror})."}, 507)

        return Route(path, respond, methods=["POST"])

    async def picture(request: Request) -> Response:
        try:
            content = await run_in_threadpool(labelling.picture, int(request.path_params["number"]))
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        return Response(content, media_type="image/jpeg")

    def save(fields: dict[str, Any]) -> dict[str, Any]:
        return labelling.save(_text_field(fields, "tab"), _image_field(fields), _text_field(fields, "label"))

    routes = [
        Route("/api/image/{number:int}", picture),
        post("/api/next", lambda fields: labelling.next(_text_field(fields, "tab"))),
        post("/api/undo", lambda fields: labelling.undo(_text_field(fields, "tab"))),
        post("/api/skip", lambda fields: labelling.skip(_text_field(fields, "tab"), _image_field(fields))),
        post("/api/save", save),
    ]
    return _guarded(LABEL_FILES, routes, hosts)


def _guarded(pages: dict[str, str], routes: list[Route], hosts: Collection[str] | None) -> Guard:
    """Return an application with files of this package, by path, and endpoints that answer errors with a sentence."""

    def file_route(path: str, name: str) -> Route:
        content = (files("paucal.verbs.serve") / name).read_bytes()

        async def send(request: Request) -> Response:
            return Response(content, media_type=MEDIA_TYPES[Path(name).suffix])

        return Route(path, send)

    async def refuse(request: Request, problem: Exception) -> Response:
        status = 409 if isinstance(problem, Conflict) else getattr(problem, "status", 422)
        return JSONResponse({"error": str(problem)}, status)

    routes = [*(file_route(path, name) for path, name in pages.items()), *routes]
    return Guard(Starlette(routes=routes, exception_handlers={RefusedRequest: refuse, UserError: refuse}), hosts)


async def read_body(request: Request, max_bytes: int, kinds: tuple[str, ...]) -> bytes:
    """Return the body of a request, never holding more than `max_bytes` bytes of it.

    `kinds` are the beginnings of the content types that are accepted.

    Raises:
        RefusedRequest: The body is too large, too slow, empty, or of another content type.
    """
    noun, limit, expected = "request", f"{max_bytes} bytes", "the content type application/json"
    if kinds == PICTURES:
        noun, limit = "picture", f"{max_bytes / 1e6:.3g} MB, the limit set by --max-upload"
        expected = "the picture itself, with the content type image/jpeg or application/octet-stream"
    too_large = RefusedRequest(413, f"the {noun} is larger than {limit}.")
    if not request.headers.get("content-type", "").startswith(kinds):
        raise RefusedRequest(415, f"send {expected}.")
    stated_length = request.headers.get("content-length", "0")
    if not stated_length.isdecimal() or int(stated_length) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise RefusedRequest(408, f"the {noun} did not arrive in time.") from None
    except ClientDisconnect:
        raise RefusedRequest(400, f"the {noun} did not arrive.") from None
    if not content:
        raise RefusedRequest(422, f"there was no {noun}: send one.")
    return bytes(content)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise RefusedRequest(422, "send a JSON object.")
    return values


def _text_field(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields.get(name), str):
        raise RefusedRequest(422, f"the request has no text field {name!r}.")
    return fields[name]


def _image_field(fields: dict[str, Any]) -> int:
    if type(fields.get("image")) is not int:
        raise RefusedRequest(422, "the request has no number field 'image'.")
    return fields["image"]
