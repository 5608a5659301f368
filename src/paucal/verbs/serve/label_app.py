"""The web application of the labelling page: its files, its images, and the endpoints that save."""

import json
from collections.abc import Callable, Collection
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paucal.types import UserError
from paucal.verbs.serve.app import Guard, RefusedRequest, read_body, send_file
from paucal.verbs.serve.labelling import Conflict, Labelling

MAX_BYTES = 10_000  # limit of a request
JSON = "application/json"  # another site could only send it after a CORS preflight, which is never granted
FILES = {
    "/": ("label.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/label.css": ("label.css", "text/css"),
    "/label.js": ("label.js", "text/javascript"),
}


def make_label_app(labelling: Labelling, hosts: Collection[str] | None) -> Guard:
    """Return the application.

    Args:
        labelling: Images and labels.
        hosts: Host names that requests may use for the server; None for any.
    """

    def post(path: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Route:
        async def respond(request: Request) -> Response:
            try:
                content = _parse(await read_body(request, MAX_BYTES, JSON))
                return JSONResponse(await run_in_threadpool(answer, content))
            except RefusedRequest as problem:
                return JSONResponse({"error": problem.sentence}, problem.status)
            except Conflict as problem:
                return JSONResponse({"error": str(problem)}, 409)
            except UserError as problem:
                return JSONResponse({"error": str(problem)}, 422)
            except OSError as problem:
                return JSONResponse({"error": f"the label was not saved ({problem.strerror})."}, 507)

        return Route(path, respond, methods=["POST"])

    async def picture(request: Request) -> Response:
        try:
            content = await run_in_threadpool(labelling.picture, int(request.path_params["number"]))
        except UserError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        return Response(content, media_type="image/jpeg")

    routes = [
        *(Route(path, send_file(*file_arguments)) for path, file_arguments in FILES.items()),
        Route("/api/image/{number:int}", picture),
        post("/api/next", lambda fields: labelling.next(_text_field(fields, "tab"))),
        post("/api/undo", lambda fields: labelling.undo(_text_field(fields, "tab"))),
        post("/api/skip", lambda fields: labelling.skip(_text_field(fields, "tab"), _image_field(fields))),
        post(
            "/api/save",
            lambda fields: labelling.save(
                _text_field(fields, "tab"), _image_field(fields), _text_field(fields, "label")
            ),
        ),
    ]
    return Guard(Starlette(routes=routes), hosts)


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
