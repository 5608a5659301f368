"""`paucal serve`: a local web page to try a model, or to label images."""

import ipaddress
import socket
from contextlib import ExitStack
from pathlib import Path

from paucal.export.reading import load_model
from paucal.models.regression import RegressionCard
from paucal.runner.console import Console
from paucal.runner.familiar import load_familiarity
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges
from paucal.types import UserError
from paucal.verbs.serve.label_order import check_labelling, open_labelling
from paucal.verbs.serve.labelling import LabelFile, check_label_file
from paucal.verbs.serve.picture_predictor import PicturePredictor
from paucal.verbs.serve.settings import ServeSettings
from paucal.wording import counted

ANY_ADDRESS = ("0.0.0.0", "::")  # values of --host that accept connections from other machines
LOCAL = ("127.0.0.1", "localhost", "::1")  # names of this machine, which other machines cannot connect to
MAX_CONNECTIONS = 128  # number of simultaneous connections


def serve(source: str | None, settings: ServeSettings, console: Console) -> None:
    """Serve a page to try a model (a run, exported folder or ONNX file) or to label images, until interrupted."""
    check_ranges(settings)
    try:
        import uvicorn

        from paucal.verbs.serve.app import make_app, make_label_app
    except ImportError as problem:
        raise UserError(f"paucal serve needs {problem.name}: pip install 'paucal[serve]'") from problem
    check_labelling(source, settings)
    hosts = _allowed_hosts(settings.host)
    with ExitStack() as stack:
        if source is None or settings.label is not None:
            path = check_label_file(str(settings.save), str(settings.label))
            listener = stack.enter_context(_listening_socket(settings.host, settings.port))
            saved = stack.enter_context(LabelFile(path))
            app = make_label_app(open_labelling(source, settings, saved, console), hosts)
        else:
            model = load_model(source, settings.device)
            if isinstance(model.card, RegressionCard):
                output = model.card.target
            else:
                output = counted(len(model.require_classifier().classes), "class", "classes")
            # The port is checked first, since reading the training images may take a minute.
            listener = stack.enter_context(_listening_socket(settings.host, settings.port))
            run = RunFolder(Path(source))
            familiarity = load_familiarity(run, model, console) if run.config.exists() else None
            predictor = PicturePredictor(model, familiarity, settings.precision, settings.mirror)
            title = f"{Path(source).resolve().name}: {model.card.backbone.name}, {output}"
            app = make_app(predictor, title, settings.max_upload * 10**6, hosts)
        if settings.host not in LOCAL:
            console.say("note: other machines can reach this page without a login")
        console.say(f"open {addresses(settings.host, settings.port)} in a browser; press Ctrl-C to stop")
        config = uvicorn.Config(
            app, log_level="warning", limit_concurrency=MAX_CONNECTIONS, server_header=False, lifespan="off", ws="none"
        )
        uvicorn.Server(config).run(sockets=[listener])
    console.say("stopped.")


def addresses(host: str, port: int) -> str:
    """Return the URL of the page on this machine and, if other machines can connect, the URL for other machines."""
    if host not in ANY_ADDRESS:
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    address = f"http://127.0.0.1:{port}/"
    if (network_address := find_network_address()) is None:
        return address
    return f"{address}, or on another device of your network http://{network_address}:{port}/,"


def find_network_address() -> str | None:
    """Return this machine's IPv4 address in its network; None if the machine is not connected to a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp_socket:
        try:
            # Connecting a UDP socket only chooses a route. Nothing is sent to this example address.
            udp_socket.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return udp_socket.getsockname()[0]


def _allowed_hosts(host: str) -> tuple[str, ...] | None:
    """Return the host names that requests may use: --host and, if the server is local, the names in `LOCAL`.

    Return None, which allows all names, if the server listens on all addresses of this machine.
    """
    if host in ANY_ADDRESS:
        return None
    try:
        is_loopback_host = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback_host = host == "localhost"
    return (*LOCAL, host) if is_loopback_host else (host,)


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (socket.gaierror, UnicodeError) as problem:
        raise UserError(f"--host {host!r} is not a valid address: remove --host, or give 0.0.0.0.") from problem
    try:
        is_dual_stack = host == "::" and socket.has_dualstack_ipv6()  # the printed addresses are IPv4 addresses
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=is_dual_stack)
    except PermissionError as problem:
        raise UserError(f"--port {port} is not permitted for this user: give a port above 1023.") from problem
    except OSError as problem:
        text = f"--port {port} of {host} is not available ({problem.strerror}): try --port {port % 65535 + 1}."
        raise UserError(text) from problem
