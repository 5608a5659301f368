"""The web application: our page and one endpoint that classifies a picture; every request is checked."""

import asyncio
from collections.abc import Collection
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paucal.types import UserError
from paucal.verbs.serve.answering import Answerer

MAX_WAITING = 16  # pictures held in memory at once
PATIENCE = 30.0  # seconds in which a picture must arrive
LONGEST_NAME = 200
KINDS = ("image/", "application/octet-stream")  # types that a page of another site cannot send without a CORS preflight
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


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
    """An ASGI application around another one.

    A page of another site can point its own host name at this machine's address (DNS rebinding); its requests still
    carry that name and are refused.

    Args:
        app: Application to protect.
        hosts: Host names that requests may use for this server; None for any.
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
    """A request is refused.

    Args:
        status: HTTP status.
        sentence: Sentence for the user.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def make_app(
    answerer: Answerer, title: str, max_bytes: int, hosts: Collection[str] | None, max_waiting: int = MAX_WAITING
) -> Guard:
    """Return the application.

    Args:
        answerer: Source of the answers.
        title: Title of the page.
        max_bytes: Largest accepted picture, in bytes.
        hosts: Host names that requests may use for the server; None for any.
        max_waiting: Number of pictures held in memory at once; more are refused with status 503.
    """
    n_waiting = 0

    async def classify(request: Request) -> Response:
        nonlocal n_waiting
        if n_waiting >= max_waiting:
            headers = {"Retry-After": "1"}
            return JSONResponse({"error": "too many pictures at once: try again in a moment."}, 503, headers)
        n_waiting += 1
        try:
            content = await read_body(request, max_bytes)
            name = request.query_params.get("name", "picture")[:LONGEST_NAME] or "picture"
            explain = request.query_params.get("explain") == "1"
            return JSONResponse(await run_in_threadpool(answerer.answer, content, name, explain))
        except RefusedRequest as problem:
            return JSONResponse({"error": problem.sentence}, problem.status)
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 422)
        finally:
            n_waiting -= 1

    async def about(request: Request) -> Response:
        classes = list(answerer.model.classes)
        return JSONResponse({"title": title, "classes": classes, "several": answerer.model.card.several})

    routes = [Route(path, send_file(*file_arguments)) for path, file_arguments in FILES.items()]
    routes += [Route("/api/model", about), Route("/api/classify", classify, methods=["POST"])]
    return Guard(Starlette(routes=routes), hosts)


def send_file(name: str, kind: str) -> Any:
    """Return an endpoint that sends a file of the page.

    Args:
        name: Name of the file.
        kind: Its media type.
    """
    content = (files("paucal.verbs.serve") / name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind)

    return send


async def read_body(request: Request, max_bytes: int, kinds: str | tuple[str, ...] = KINDS) -> bytes:
    """Return the body of a request, never holding more than `max_bytes` bytes of it.

    Args:
        request: Request.
        max_bytes: Largest number of bytes.
        kinds: Beginnings of the content types that are accepted.

    Raises:
        Refused: the body is too large, too slow, empty, or of another content type.
    """
    noun = "picture" if kinds == KINDS else "request"
    too_large = RefusedRequest(
        413, f"the {noun} is larger than {max_bytes / 1e6:.3g} MB, the limit set by --max-upload."
    )
    if not request.headers.get("content-type", "").startswith(kinds):
        sent = "the picture itself, with the content type image/jpeg or application/octet-stream"
        raise RefusedRequest(415, f"send {sent if kinds == KINDS else f'the content type {kinds}'}.")
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
