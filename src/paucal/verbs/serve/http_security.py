"""What every request passes: is it meant for this address, and what may a browser do with the answer."""

from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

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

    A page of another site can lead its own name to this machine's address (DNS rebinding); its requests still carry
    that name, and are refused.

    Args:
        app: Application to protect.
        hosts: Names by which this server may be asked for; None for any.
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

        asked = host_name(Headers(scope=scope).get("host", ""))
        if self._hosts is not None and asked not in self._hosts:
            await PlainTextResponse("this address is not served", 400)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)
