"""What a run starts from: another run, a weights file, or the weights that timm publishes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn

from paucal.backbones.adapt import position_grid
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.load_report import LoadReport
from paucal.backbones.starting import Head, StartWeights, pick_network, start_from, suggest_model
from paucal.data.images import ImageSet
from paucal.data.split_file import read_rows
from paucal.data.splits import Split
from paucal.evaluation.deployed import Card
from paucal.recipes.facts import StartFacts
from paucal.recipes.settings import TrainSettings
from paucal.runs import RunFolder, open_run, read_weights
from paucal.runs.folder import MARKER
from paucal.runs.foreign import read_foreign
from paucal.types import UserError

TIMM = "timm"
RECORD = "init.json"


@dataclass(frozen=True)
class Start:
    """Where a run's first weights come from; by default from nowhere. None of them are read yet.

    Attributes:
        facts: what the automatic settings look at.
        read: reads the weights, given the timm name of the run's model.
        record: what was loaded at the beginning of a run that goes on from a saved state.
    """

    facts: StartFacts | None = None
    read: Callable[[str], StartWeights] | None = None
    record: LoadReport | None = None


def pin_start(settings: TrainSettings) -> TrainSettings:
    """Return settings that find the same start from any folder and at any later time.

    Raises:
        UserError: there is nothing of that name.
    """
    if settings.init is None or settings.init == TIMM:
        return settings
    path = _existing(settings.init)
    return replace(settings, init=str((open_run(path).path if path.is_dir() else path).resolve()))


def find_start(settings: TrainSettings, run: RunFolder | None = None) -> Start:
    """Look at what `--init` names, without reading its weights.

    Args:
        settings: as given, the start's path pinned.
        run: the run that goes on, if it is one. Once it has saved a state it needs its start no more.

    Raises:
        UserError: the start is gone, is no run, or does not say which model it holds and `--model` does not either.
    """
    _require_sense(settings)
    if settings.init is None:
        return Start()
    if run is not None and run.last.exists():
        return Start(record=_recorded(run))
    if settings.init == TIMM:
        return Start(StartFacts("timm's weights", normalise="model"), read_timm)
    path = _existing(settings.init)
    folder = RunFolder(path) if path.is_dir() else _run_around(path)
    if folder is not None:
        card, file = Card.from_dict(folder.read_json(folder.card.name)), None if path.is_dir() else path
        return Start(_facts_of_run(folder, card), lambda _: _read_run(folder, card, file))
    source = f"the file {path.name}"
    model = settings.model or _model_of(path)
    return Start(StartFacts(source, model, normalise="model"), lambda _: StartWeights(_network(path, settings), source))


def load_start(
    start: Start, settings: TrainSettings, objective: nn.Module, classes: Sequence[str]
) -> LoadReport | None:
    """Load the start's weights into every backbone of an objective; heads of extra losses begin anew.

    Returns:
        What was loaded, or None where the run starts from nothing.

    Raises:
        UserError: the weights cannot be read or fetched, or do not fit.
    """
    if start.read is None:
        return start.record
    weights = start.read(settings.model or "")
    models = [module.model for module in objective.modules() if isinstance(module, FeatureBackbone)]
    reports = [start_from(model, weights, classes, settings.init_head) for model in models]
    return reports[0] if reports else None


def seen_by_start(settings: TrainSettings, images: ImageSet, split: Split) -> list[str]:
    """Return a remark if the run that this one starts from has learned from images which this one tests with.

    Without labels (pre-training) that is common practice and worth knowing; with labels the test score means nothing.
    """
    path = Path(settings.init or "").expanduser()
    run = (RunFolder(path) if path.is_dir() else _run_around(path)) if settings.init not in (None, TIMM) else None
    if run is None or not run.split.exists():
        return []
    config = run.read_yaml(run.config.name)
    stored: Any = config.get("settings")
    if not isinstance(stored, dict) or stored.get("data") != settings.data:
        return []  # keys say which image it is only within one set
    learned = {row["key"] for row in read_rows(run.split) if row["split"] == "train"}
    count = sum(images.keys[index] in learned for index in split.indices("test"))
    if not count:
        return []
    how = "without labels" if config.get("verb") == "pretrain" else "with their labels: the test score will mean little"
    return [f"the start has learned from {count} of the {len(split.indices('test'))} test images, {how}"]


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
        model: one of timm's or ours, built with fresh weights.
        file: what `torch.save` wrote, or safetensors.
        network: of several in one file, the name of the one to take ("teacher", "student", "state_dict_ema"); by
            default an average or the teacher.
        classes: names of the model's outputs, where known.
        head: what becomes of the classifier: kept where it fits ("auto"), insisted on ("keep"), discarded ("fresh").

    Returns:
        What was loaded, adapted, left out and not found; print it.

    Raises:
        UserError: the file is damaged or holds Python objects, little of it matches, or a recognised checkpoint is of
            another variant.
    """
    path = Path(file).expanduser()
    tree, source = read_foreign(path), f"the file {path.name}"
    tree = tree if network is None else pick_network(tree, network, source)
    return start_from(model, StartWeights(tree, source), classes, head)


def _model_of(path: Path) -> str:
    name = suggest_model(read_foreign(path))
    if name is None:
        raise UserError(
            f"--init: {str(path)!r} does not say which model its weights are of; give --model, such as "
            "--model swin_tiny_patch4_window7_224."
        )
    return name


def _network(path: Path, settings: TrainSettings) -> Mapping[str, Any]:
    tree = read_foreign(path)
    return tree if settings.init_network is None else pick_network(tree, settings.init_network, f"the file {path.name}")


def _existing(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(
            f"--init: there is no file or run folder {name!r}; give a run folder such as runs/1, a weights file "
            f"(.safetensors, .pth), or {TIMM!r} for the weights that timm publishes."
        )
    return path


def _require_sense(settings: TrainSettings) -> None:
    if settings.init is None and settings.init_head != "auto":
        raise UserError("--init-head says what becomes of the classifier of --init: give --init too, or leave it out.")
    if settings.init_network is not None and (settings.init is None or not Path(settings.init).expanduser().is_file()):
        raise UserError(
            f"--init-network {settings.init_network} names a network within a file: give the file to --init, or leave "
            "it out."
        )


def _recorded(run: RunFolder) -> LoadReport:
    try:
        return LoadReport.from_dict(run.read_json(RECORD))
    except TypeError as problem:
        path = str(run.path / RECORD)
        raise UserError(f"{path!r} is no report of paucal ({problem}): restore it or train anew.") from problem


def _run_around(file: Path) -> RunFolder | None:
    """Return the run that a file is the model or a saved state of."""
    for folder in (file.parent, file.parent.parent):
        run = RunFolder(folder)
        if (folder / MARKER).is_file() and file in (run.weights, run.best, run.last):
            return run
    return None


def _facts_of_run(run: RunFolder, card: Card) -> StartFacts:
    stored: Any = run.read_yaml(run.config.name).get("settings")
    settings: Mapping[str, Any] = stored if isinstance(stored, dict) else {}
    words, normalise = settings.get("model_args"), settings.get("normalise")
    return StartFacts(
        str(run.path),
        card.backbone.name,
        card.backbone.image_size,
        _with_patches(tuple(map(str, words)) if isinstance(words, list) else (), card),
        normalise if normalise in ("computed", "imagenet", "model") else "computed",
    )


def _with_patches(typed: Sequence[str], card: Card) -> tuple[str, ...]:
    """Return the words of `--model-args` that were typed for the start, and the size of the patches chosen for it.

    Without the latter, images of another size would get other patches instead of more of them.
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


def read_timm(name: str) -> StartWeights:
    """Fetch the weights that timm publishes for a model.

    Raises:
        UserError: there are none, or they cannot be fetched.
    """
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.has_weights:
        raise UserError(
            f"--init timm: timm publishes no weights of {name}; start from a run or a file, or from nothing."
        )
    try:
        with torch.random.fork_rng(devices=[]):
            model = timm.create_model(name, pretrained=True)
    except Exception as problem:  # no network, no such file any more, a proxy: each library has types of its own
        where = config.hf_hub_id or config.url
        reason = (str(problem).split("\n")[0].split(". ")[0] or type(problem).__name__).rstrip(".")
        raise UserError(
            f"--init timm: the weights of {name} could not be fetched ({reason}); fetch {where} on a machine with a "
            "network and give the file to --init."
        ) from problem
    subset = infer_imagenet_subset(model)
    classes = tuple(ImageNetInfo(subset).label_names()) if subset else None
    grid = position_grid(model)
    return StartWeights(dict(model.state_dict()), f"timm's weights of {name}", name, classes, grid)
