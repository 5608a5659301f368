"""`paucal serve`: a local page to try a model on."""

import ipaddress
import socket
from contextlib import ExitStack
from pathlib import Path

from paucal.export.reading import load_model
from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console
from paucal.runner.familiar import familiarity_of
from paucal.runs import RunFolder, open_run
from paucal.runs.folder import MARKER
from paucal.settings.options import check_ranges
from paucal.types import UserError
from paucal.verbs.serve.answering import Answerer
from paucal.verbs.serve.label_file import LabelFile, check_label_file
from paucal.verbs.serve.label_order import check_labelling, open_labelling
from paucal.verbs.serve.settings import ServeSettings

EVERYWHERE = ("0.0.0.0", "::")
LOCAL = ("127.0.0.1", "localhost", "::1")
OPEN_CONNECTIONS = 128


def serve(source: str | None, settings: ServeSettings, console: Console) -> None:
    """Serve a page until the user interrupts.

    Args:
        source: A run, an exported folder, or an ONNX file; None to label images without a model.
        settings: Address of the server, limits of its requests, and images to label.
        console: Console that shows the address.
    """
    check_ranges(settings)
    try:
        import uvicorn

        from paucal.verbs.serve.app import make_app
        from paucal.verbs.serve.label_app import make_label_app
    except ImportError as problem:
        raise UserError(f"paucal serve needs {problem.name}: pip install 'paucal[serve]'") from problem
    check_labelling(source, settings)
    with ExitStack() as stack:
        if source is None or settings.label is not None:
            path = check_label_file(str(settings.save), str(settings.label))
            listener = stack.enter_context(_listening(settings.host, settings.port))
            saved = stack.enter_context(LabelFile(path))
            app = make_label_app(open_labelling(source, settings, saved, console), _hosts(settings.host))
        else:
            model = load_model(source, settings.device)
            if not isinstance(model.card, RegressionCard):
                model.require_classifier()
            # Before the minute that reading the images may take.
            listener = stack.enter_context(_listening(settings.host, settings.port))
            path = Path(source)
            known = familiarity_of(open_run(path), model, console) if (path / MARKER).exists() else None
            title, most = _title(source, model), settings.max_upload * 10**6
            app = make_app(
                Answerer(model, known, settings.precision, settings.mirror), title, most, _hosts(settings.host)
            )
        if settings.host not in LOCAL:
            console.say("note: other machines can reach this page, and nothing asks who they are")
        console.say(f"open {addresses(settings.host, settings.port)} in a browser; Ctrl-C ends it")
        config = uvicorn.Config(
            app, log_level="warning", limit_concurrency=OPEN_CONNECTIONS, server_header=False, lifespan="off", ws="none"
        )
        uvicorn.Server(config).run(sockets=[listener])
    console.say("ended.")


def addresses(host: str, port: int) -> str:
    """Return the address of a page as a browser takes it; of one for all machines that for this one and for others."""
    if host not in EVERYWHERE:
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    own = address_in_network()
    others = "" if own is None else f", or on another device of your network http://{own}:{port}/,"
    return f"http://127.0.0.1:{port}/{others}"


def address_in_network() -> str | None:
    """Return this machine's address in its network; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(
                ("192.0.2.1", 9)
            )  # an address for documentation; connecting UDP chooses a way and sends nothing
        except OSError:
            return None
        return way.getsockname()[0]


def _title(source: str, model: TrainedModel) -> str:
    run = RunFolder(Path(source)).path.resolve().name
    gives = model.card.target if isinstance(model.card, RegressionCard) else f"{len(model.classes)} classes"
    return f"{run}: {model.card.backbone.name}, {gives}"


def _hosts(host: str) -> tuple[str, ...] | None:
    """Return the host names that requests may use: the server's own, and if it is local all names of this machine."""
    if host in EVERYWHERE:
        return None
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return (*LOCAL, host) if loopback else (host,)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (socket.gaierror, UnicodeError) as problem:
        raise UserError(f"--host is {host!r}, which is not an address: leave it out, or give 0.0.0.0.") from problem
    try:
        both = host == "::" and socket.has_dualstack_ipv6()  # the addresses that are shown are those of IPv4
        return socket.create_server((host, port), family=family, backlog=OPEN_CONNECTIONS, dualstack_ipv6=both)
    except PermissionError as problem:
        raise UserError(f"this user may not use --port {port}: take one above 1023.") from problem
    except OSError as problem:
        raise UserError(
            f"--port {port} of {host} is not available ({problem.strerror}): try --port {port % 65535 + 1}."
        ) from problem
