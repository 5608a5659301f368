"""The initial weights of a run: those of another run, of a file, or published by timm."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import timm
import torch
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn

from paucal.backbones.weights.adapt import position_grid
from paucal.backbones.weights.fetching import hushed, require_reachable
from paucal.backbones.weights.inputs import ImageInput, input_of_file, input_of_timm, program_of
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import Head, StartWeights, pick_network, start_from, suggest_model
from paucal.backbones.weights.trained import Package, named_in_order, packaged
from paucal.evaluation.deployed import Card
from paucal.objectives import Objective
from paucal.rules.facts import StartFacts
from paucal.runs import RunFolder, open_model, read_weights
from paucal.runs.ancestry import PUBLISHED, TIMM, run_around, with_ancestors
from paucal.runs.foreign import read_foreign
from paucal.settings.groups import ModelSettings
from paucal.types import UserError
from paucal.verbs.run.start_inputs import input_of_card, recorded_input

M = TypeVar("M", bound=ModelSettings)
RECORD = "init.json"
NONE = "none"


@dataclass(frozen=True)
class Start:
    """Source of a run's initial weights, before they are read; by default random weights.

    Attributes:
        facts: Facts for the automatic settings.
        read: Function that reads the weights, given the timm name of the run's model.
        input: Function that returns their preprocessing, given the timm name of the run's model; None if unknown.
        record: Report on the weights loaded at the start of a resumed run.
    """

    facts: StartFacts | None = None
    read: Callable[[str], StartWeights] | None = None
    input: Callable[[str], ImageInput] | None = None
    record: LoadReport | None = None


def plain_init(settings: M) -> M:
    """Return settings in which the start "none" is None."""
    return replace(settings, init=None) if settings.init == NONE else settings


def pin_start(settings: M) -> M:
    """Return settings with the absolute path of the initial weights.

    Raises:
        UserError: The path does not exist.
    """
    if settings.init is None or settings.init in PUBLISHED:
        return settings
    path = _existing(settings.init)
    return replace(settings, init=str((open_model(path).path if path.is_dir() else path).resolve()))


def find_start(settings: ModelSettings, run: RunFolder | None = None) -> Start:
    """Find the weights that `--init` names, without reading them.

    Args:
        settings: Settings with the absolute path of the weights.
        run: Run to resume; once it has saved a state, its initial weights are not needed.

    Raises:
        UserError: The weights are missing, are not in a run folder, or belong to an unknown model.
    """
    if settings.init is not None and run is not None and run.last.exists():
        return _recorded(run)
    _require_sense(settings)
    if settings.init is None:
        return Start()
    if settings.init in PUBLISHED:
        return Start(StartFacts("timm's weights", normalise="model"), read_timm, input_of_timm)
    path = _existing(settings.init)
    folder = RunFolder(path) if path.is_dir() else run_around(path)
    if folder is not None:
        card, file = Card.from_dict(folder.read_json(folder.card.name)), None if path.is_dir() else path
        return Start(
            _facts_of_run(folder, card), lambda _: _read_run(folder, card, file), lambda _: input_of_card(card)
        )
    source, tree = f"the file {path.name}", cache(lambda: read_foreign(path))
    model = settings.model or _model_of(path, tree())
    return Start(
        StartFacts(source, model, normalise="model"),
        lambda _: StartWeights(_network(path, tree(), settings), source),
        lambda name: input_of_file(program_of(tree()), name),
    )


def load_start(
    start: Start, model: str | None, objective: Objective, classes: Sequence[str], head: Head = "auto"
) -> LoadReport | None:
    """Load the initial weights into every backbone of an objective; heads of extra losses stay random.

    Returns:
        A report on the loaded weights; None for random weights.

    Raises:
        UserError: The weights cannot be read or downloaded, or do not fit.
    """
    if start.read is None:
        return start.record
    weights = start.read(model or "")
    reports = [start_from(backbone.model, weights, classes, head) for backbone in objective.backbones()]
    fed = {} if start.input is None else asdict(start.input(model or ""))
    return replace(reports[0], input=fed)


def load_published(
    model: nn.Module,
    file: str | Path,
    network: str | None = None,
    classes: Sequence[str] | None = None,
    head: Head = "auto",
) -> LoadReport:
    """Load a published checkpoint into a model in place; no code in the file is run.

    The files of VTs-Drloc, Swin-Transformer, CvT, T2T-ViT, TokenLabeling, EsViT, DHVT, DINO and Vision Longformer are
    recognised by the names of their tensors and translated; those of timm and torchvision need no translation.

    Args:
        model: Model of timm or paucal with random weights.
        file: File written by `torch.save`, or safetensors.
        network: Name of the network in a file with several ("teacher", "student", "state_dict_ema"); by default an
            average or the teacher.
        classes: Names of the model's outputs, if known.
        head: Treatment of the classifier: kept if it fits ("auto"), required ("keep") or random ("fresh").

    Returns:
        A printable report on loaded, adapted, skipped and missing weights.

    Raises:
        UserError: The file is damaged or contains Python objects, little of it matches, or the checkpoint belongs to
            another variant of the model.
    """
    path = Path(file).expanduser()
    tree, source = read_foreign(path), f"the file {path.name}"
    tree = tree if network is None else pick_network(tree, network, source)
    return start_from(model, StartWeights(tree, source), classes, head)


def _model_of(path: Path, tree: Mapping[str, Any]) -> str:
    name = suggest_model(tree)
    if name is None:
        raise UserError(
            f"--init: {str(path)!r} does not name the model of its weights; give --model, such as "
            "--model swin_tiny_patch4_window7_224."
        )
    return name


def _network(path: Path, tree: Mapping[str, Any], settings: ModelSettings) -> Mapping[str, Any]:
    return tree if settings.init_network is None else pick_network(tree, settings.init_network, f"the file {path.name}")


def _existing(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(
            f"--init: there is no file or run folder {name!r}; give a run folder such as runs/1, a weights file "
            f"(.safetensors, .pth), or {TIMM!r} for the weights that timm publishes."
        )
    return path


def _require_sense(settings: ModelSettings) -> None:
    if settings.init is None and getattr(settings, "init_head", "auto") != "auto":
        raise UserError("--init-head applies to the classifier of --init: give --init too, or leave it out.")
    if settings.init_network is not None and (settings.init is None or not Path(settings.init).expanduser().is_file()):
        raise UserError(
            f"--init-network {settings.init_network} names a network within a file: give the file to --init, or leave "
            "it out."
        )


def _recorded(run: RunFolder) -> Start:
    try:
        record = LoadReport.from_dict(run.read_json(RECORD))
        fed = recorded_input(record)
    except TypeError as problem:
        path = str(run.path / RECORD)
        raise UserError(f"{path!r} is no report of paucal ({problem}): restore it or train anew.") from problem
    return Start(input=None if fed is None else lambda _: fed, record=record)


def _facts_of_run(run: RunFolder, card: Card) -> StartFacts:
    settings = run.settings
    words = settings.get("model_args")
    return StartFacts(
        str(run.path),
        card.backbone.name,
        card.backbone.image_size,
        _with_patches(tuple(map(str, words)) if isinstance(words, list) else (), card),
        "model",
        shown=images_shown(run),
    )


def images_shown(run: RunFolder) -> int | None:
    """Return how many images the weights of a run have been trained on since they were random; None if unknown.

    Epochs times training images, of the run and of those it started from. It is unknown for published weights.
    """
    total = 0
    try:
        for ancestor in with_ancestors(run):
            summary, init = ancestor.read_json("summary.json"), ancestor.settings.get("init")
            images = summary["parts"]["train"]
            total += round(float(summary["epochs"]) * (sum(images.values()) if isinstance(images, dict) else images))
            if init in (None, NONE):
                return total
    except (UserError, OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        pass  # missing, or written by another program
    return None


def _with_patches(typed: Sequence[str], card: Card) -> tuple[str, ...]:
    """Return the `--model-args` of the initial weights, with the patch size that was chosen for them.

    Without it, images of another size would get a different patch size instead of more patches.
    """
    chosen = card.backbone.arguments.get("patch_size")
    if chosen is None or any(word.partition("=")[0] == "patch_size" for word in typed):
        return tuple(typed)
    return (*typed, f"patch_size={json.dumps(chosen)}")


def _read_run(run: RunFolder, card: Card, file: Path | None) -> StartWeights:
    tree = read_weights(run.weights) if file is None else read_foreign(file)
    height, width = card.backbone.image_size
    grid = None
    if height != width:
        with torch.device("meta"):
            grid = position_grid(card.backbone.build().model)
    source = f"the run {run.path}" if file is None else f"{file.name} of the run {run.path}"
    return StartWeights(tree, source, card.backbone.name, card.classes or None, grid)


def read_timm(name: str, init: bool = True) -> StartWeights:
    """Return the weights that timm publishes for a model, from an installed package, the cache or the network.

    Args:
        name: timm name of the model.
        init: Whether they were requested with `--init`, which errors then mention.

    Raises:
        UserError: There are none, they cannot be downloaded, or the package is damaged.
    """
    carried = packaged(name)
    if carried is not None and carried.package is not None:
        return _read_package(name, carried.package)
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.has_weights:
        raise UserError(
            f"--init timm: timm publishes no weights of {name}; start from a run or a file, or from nothing."
            if init
            else f"timm publishes no weights of {name}: give a run."
        )
    try:
        require_reachable(config)
        with torch.random.fork_rng(devices=[]), hushed():
            model = timm.create_model(name, pretrained=True)
    except Exception as problem:  # network, missing file or proxy: each library has its own types
        where = config.hf_hub_id or config.url
        reason = (str(problem).split("\n")[0].split(". ")[0] or type(problem).__name__).rstrip(".")
        failure = f"the weights of {name} could not be fetched ({reason})"
        raise UserError(
            f"--init timm: {failure}; fetch {where} on a machine with a network and give the file to --init."
            if init
            else f"{failure}: give a run, or try again with a network."
        ) from problem
    return _published(model, dict(model.state_dict()), f"timm's weights of {name}", name)


def _read_package(name: str, package: Package) -> StartWeights:
    with torch.random.fork_rng(devices=[]):
        model = timm.create_model(name, pretrained=False)
    try:
        state = named_in_order(read_foreign(package.checked_path()), model)
    except ValueError as problem:
        raise UserError(
            f"the weights in the package {package.distribution} do not fit {name}: {problem}; install another "
            "version of it."
        ) from problem
    return _published(model, state, f"the weights of {name} in the package {package.distribution}", name)


def _published(model: nn.Module, state: dict[str, torch.Tensor], source: str, name: str) -> StartWeights:
    subset = infer_imagenet_subset(model)
    classes = tuple(ImageNetInfo(subset).label_names()) if subset else None
    return StartWeights(state, source, name, classes, position_grid(model))
