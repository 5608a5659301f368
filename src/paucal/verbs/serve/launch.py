"""`paucal serve`: a local web page to try a model, or to label images."""

import ipaddress
import shlex
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet, without_decoded_copies
from paucal.data.sources.joining import SEPARATOR
from paucal.export.reading import load_model, task_of_model
from paucal.models.regression import RegressionCard
from paucal.models.tasks import CLASSIFICATION, REGRESSION
from paucal.runner.console import Console
from paucal.runner.familiar import load_familiarity
from paucal.runner.images import load_images, open_undecoded
from paucal.runner.input_images import path_of_image
from paucal.runs import RunFolder
from paucal.settings.options import check_ranges
from paucal.settings.shared import DataSettings
from paucal.types import UserError
from paucal.verbs.next.launch import describe_choice
from paucal.verbs.next.predictions import Classifier
from paucal.verbs.next.selection import choose_images
from paucal.verbs.serve.labelling import LabelFile, Labelling, Suggestion, check_label_file
from paucal.verbs.serve.picture_predictor import PicturePredictor
from paucal.verbs.serve.settings import ServeSettings
from paucal.wording import counted

ANY_ADDRESS = ("0.0.0.0", "::")  # values of --host that accept connections from other machines
LOCAL = ("127.0.0.1", "localhost", "::1")  # names of this machine, which other machines cannot connect to
MAX_RANKED = 200  # largest number of images that a model ranks; for more, train a new model on the new labels first
RANDOM_EVERY = 10  # the last of this many consecutive images is drawn at random
MAX_CONNECTIONS = 128  # number of simultaneous connections


def serve(source: str | None, settings: ServeSettings, console: Console) -> None:
    """Serve a page to try a model (a run, exported folder or ONNX file) or to label images, until interrupted."""
    check_ranges(settings)
    try:
        import uvicorn

        from paucal.verbs.serve.app import make_app, make_label_app
    except ImportError as problem:
        raise UserError(f"paucal serve needs {problem.name}: pip install 'paucal[serve]'") from problem
    _check_labelling(source, settings)
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


def _check_labelling(source: str | None, settings: ServeSettings) -> None:
    """Refuse settings that contradict each other, before anything is loaded."""
    if settings.label is None:
        for name in ("save", "classes"):
            if getattr(settings, name) is not None:
                raise UserError(f"--{name} is only for labelling: give --label with the images, or remove --{name}.")
        if source is None:
            raise UserError("RUN is missing: give a model to try, or --label, --save and --classes to label images.")
        return
    if settings.save is None:
        raise UserError("--label needs --save: give a CSV file for the labels as --save.")
    classes = settings.classes
    if source is None and classes is None:
        raise UserError("--label needs classes to choose from: give --classes, or a RUN whose classes are used.")
    if classes is not None and (len(classes) < 2 or len(set(classes)) < len(classes)):
        raise UserError(f"--classes is {' '.join(classes)!r}, but expected two or more different names.")
    if source is not None and (task := task_of_model(source)) != CLASSIFICATION:
        advice = "use 'paucal next --to coco', which writes its predictions for a labelling tool"
        raise UserError(
            f"{source} is a model for {task}, but the labelling page only supports one class per image: "
            f"{'give --classes instead of a RUN' if task == REGRESSION else advice}."
        )


def open_labelling(source: str | None, settings: ServeSettings, saved: LabelFile, console: Console) -> Labelling:
    """Open the images to label; if a model is given, rank the images and predict their classes."""
    data, classes = DataSettings(data=str(settings.label), on_bad_image="skip"), settings.classes
    suggestions: Mapping[int, Suggestion] = {}
    if source is None:
        images = open_undecoded(data, labelled=False)
        order = np.random.default_rng(0).permutation(len(images)).tolist()
    else:
        model = Classifier(source, settings.device)
        if model.model.card.is_multi_label:
            raise UserError(
                f"{source} predicts several labels per image, but the labelling page only supports one: use 'paucal "
                "next --to'."
            )
        with console.progress("reading images") as advance:
            images = load_images(data, advance, labelled=False, decode_options=model.decode_options)
        order, suggestions = _rank_images(model, images, console)
        classes = model.model.classes if classes is None else classes
    paths = [path_of_image(images, key) for key in images.keys]
    if not all(Path(path).is_file() for path in paths[:1]):
        raise UserError(
            f"--label: {settings.label} contains no image files, but labels are saved by image path: give a folder of "
            "image files."
        )
    console.say(f"{counted(len(images), 'image')} to label; {counted(len(saved.labels), 'label')} in {saved.path}")
    assert classes is not None  # without a model, `_check_labelling` requires --classes
    originals = without_decoded_copies(images)
    # The command trains on the labels and, if there is a run, also on the run's training images.
    run_data = None if source is None else RunFolder(Path(source)).settings.get("data")
    sources = [str(source) for source in (run_data, saved.path) if source is not None]
    command = f"paucal train {shlex.quote(SEPARATOR.join(sources))}"
    return Labelling(originals, paths, order, classes, saved, suggestions, command)


def _rank_images(model: Classifier, images: ImageSet, console: Console) -> tuple[list[int], dict[int, Suggestion]]:
    """Return the positions of all images, the most useful first, and the model's suggestion for each image."""
    predictions = model.predict(images, console)
    choices = choose_images(
        predictions.unsure, predictions.features, predictions.training_features, MAX_RANKED, 1 / RANDOM_EVERY
    )
    suggestions = {index: Suggestion(top) for index, top in enumerate(predictions.likeliest)}
    for choice in choices:
        reason = describe_choice(predictions, choice)
        suggestions[choice.index] = replace(suggestions[choice.index], reason=reason)
    # The last of every `RANDOM_EVERY` consecutive images is a random choice.
    order = [choice.index for choice in choices if not choice.is_random]
    for number, index in enumerate([choice.index for choice in choices if choice.is_random], 1):
        order.insert(RANDOM_EVERY * number - 1, index)
    unranked = np.setdiff1d(np.arange(len(images)), order)
    return [*order, *np.random.default_rng(0).permutation(unranked).tolist()], suggestions


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
