"""The web applications of `paucal serve`: a page for classifying images and a page for labelling images."""

import asyncio
import json
from collections.abc import Callable, Collection
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paucal.types import UserError
from paucal.verbs.serve.labelling import Conflict, Labelling
from paucal.verbs.serve.picture_predictor import PicturePredictor

MAX_WAITING = 16  # largest number of images that wait in memory for their predictions
MAX_LABEL_BYTES = 10_000  # size limit of a request from the labelling page, in bytes
MAX_REQUEST_SECONDS = 30.0  # time limit for receiving the body of a request
MAX_NAME_LENGTH = 200  # number of characters after which an image's name is cut off
# Accepted content types. Pages of other sites cannot send requests with these types, since such requests need a CORS
# preflight, which this server never grants.
PICTURE_TYPES, JSON_TYPES = ("image/", "application/octet-stream"), ("application/json",)
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


def _guard(app: ASGIApp, hosts: Collection[str] | None) -> ASGIApp:
    """Return the application with security headers, which refuses requests to host names other than `hosts`.

    If `hosts` is None, all host names are allowed. A page of another site can make its own host name resolve to this
    machine's address (DNS rebinding). Such requests are refused, since their Host header has the host name of the other
    site.
    """

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        requested_host = host_name(Headers(scope=scope).get("host", ""))
        if hosts is not None and requested_host not in hosts:
            await PlainTextResponse("this host name is not served", 400)(scope, receive, send_with_headers)
            return
        await app(scope, receive, send_with_headers)

    return handle


class RefusedRequest(Exception):
    """Raised to refuse a request with the HTTP status `status`; the page shows the message `sentence`."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_app(
    predictor: PicturePredictor,
    title: str,
    max_bytes: int,
    hosts: Collection[str] | None,
    max_waiting: int = MAX_WAITING,
) -> ASGIApp:
    """Return the application that classifies images of at most `max_bytes` bytes.

    While `max_waiting` images wait for their predictions, further requests are refused. `hosts` are the host names
    that requests may use, or None to allow all host names.
    """
    n_waiting = 0

    async def classify(request: Request) -> Response:
        nonlocal n_waiting
        if n_waiting >= max_waiting:
            headers = {"Retry-After": "1"}
            return JSONResponse({"error": "too many images are waiting: try again in a moment."}, 503, headers)
        n_waiting += 1
        try:
            content = await read_body(request, max_bytes, PICTURE_TYPES)
            name = request.query_params.get("name", "picture")[:MAX_NAME_LENGTH] or "picture"
            explain = request.query_params.get("explain") == "1"
            return JSONResponse(await run_in_threadpool(predictor.predict, content, name, explain))
        finally:
            n_waiting -= 1

    async def describe_model(request: Request) -> Response:
        classes = list(predictor.model.classes)
        return JSONResponse({"title": title, "classes": classes, "several": predictor.model.card.is_multi_label})

    routes = [Route("/api/model", describe_model), Route("/api/classify", classify, methods=["POST"])]
    return _make_guarded_app(PAGE_FILES, routes, hosts)


def make_label_app(labelling: Labelling, hosts: Collection[str] | None) -> ASGIApp:
    """Return the application of the labelling page; `hosts` has the same meaning as in `make_app`."""
    # The method that answers a request, and the names and types of the request's fields, by path.
    actions: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, type]]] = {
        "/api/next": (labelling.next, {"tab": str}),
        "/api/undo": (labelling.undo, {"tab": str}),
        "/api/skip": (labelling.skip, {"tab": str, "image": int}),
        "/api/save": (labelling.save, {"tab": str, "image": int, "label": str}),
    }

    async def respond(
        method: Callable[..., dict[str, Any]], field_types: dict[str, type], request: Request
    ) -> Response:
        content = await read_body(request, MAX_LABEL_BYTES, JSON_TYPES)
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise RefusedRequest(422, "send a JSON object.")
        for name, field_type in field_types.items():
            if type(fields.get(name)) is not field_type:
                noun = "text" if field_type is str else "number"
                raise RefusedRequest(422, f"the request has no {noun} field {name!r}.")
        try:
            return JSONResponse(await run_in_threadpool(method, *(fields[name] for name in field_types)))
        except OSError as problem:
            return JSONResponse({"error": f"the label could not be saved ({problem.strerror})."}, 507)

    async def send_image(request: Request) -> Response:
        try:
            content = await run_in_threadpool(labelling.picture, int(request.path_params["number"]))
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        return Response(content, media_type="image/jpeg")

    routes = [Route(path, partial(respond, *action), methods=["POST"]) for path, action in actions.items()]
    return _make_guarded_app(LABEL_FILES, [Route("/api/image/{number:int}", send_image), *routes], hosts)


def _make_guarded_app(pages: dict[str, str], routes: list[Route], hosts: Collection[str] | None) -> ASGIApp:
    """Return an application that serves `pages`, which maps URL paths to files of this package, and `routes`.

    An error in a request becomes a JSON response with the error message.
    """

    async def send_file(content: bytes, media_type: str, request: Request) -> Response:
        return Response(content, media_type=media_type)

    async def refuse(request: Request, problem: Exception) -> Response:
        status = 409 if isinstance(problem, Conflict) else getattr(problem, "status", 422)
        return JSONResponse({"error": str(problem)}, status)

    file_routes = []
    for path, name in pages.items():
        content = (files("paucal.verbs.serve") / name).read_bytes()
        file_routes.append(Route(path, partial(send_file, content, MEDIA_TYPES[Path(name).suffix])))
    routes = [*file_routes, *routes]
    return _guard(Starlette(routes=routes, exception_handlers={RefusedRequest: refuse, UserError: refuse}), hosts)


async def read_body(request: Request, max_bytes: int, content_types: tuple[str, ...]) -> bytes:
    """Return the body of a request, or refuse a body that is too large, too slow, empty, or of another content type.

    `content_types` are accepted content types or their prefixes: `PICTURE_TYPES` or `JSON_TYPES`.
    """
    noun, limit, expected = "request", f"{max_bytes} bytes", "the content type application/json"
    if content_types == PICTURE_TYPES:
        noun, limit = "image", f"{max_bytes / 1e6:.3g} MB, the limit set by --max-upload"
        expected = "the image itself, with the content type image/jpeg or application/octet-stream"
    too_large = RefusedRequest(413, f"the {noun} is larger than {limit}.")
    if not request.headers.get("content-type", "").startswith(content_types):
        raise RefusedRequest(415, f"send {expected}.")
    stated_length = request.headers.get("content-length", "0")
    if not stated_length.isdecimal() or int(stated_length) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(MAX_REQUEST_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise RefusedRequest(408, f"the {noun} did not arrive in time.") from None
    except ClientDisconnect:
        raise RefusedRequest(400, f"the {noun} did not arrive.") from None
    if not content:
        raise RefusedRequest(422, f"the {noun} is empty: send another {noun}.")
    return bytes(content)
