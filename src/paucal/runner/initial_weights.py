"""Find and load the initial weights of a run: from another run, a file or timm, or chosen automatically."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from paucal.backbones.names import timm_config
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, checkpoint_preprocessing, find_program
from paucal.backbones.weights.load_report import LoadReport
from paucal.backbones.weights.start import Head, StartWeights, pick_network, start_from
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import model_of_file, read_timm
from paucal.models.trained import read_card
from paucal.models.weights.local import (
    download_problem,
    find_added_weights,
    find_packaged_weights,
    input_of_weights,
    location_of,
    ready_weights,
    suitable_weights,
)
from paucal.models.weights.table import PretrainedWeights, has_terms
from paucal.objectives import Objective
from paucal.rules.resolve import InitialWeightsInfo, device_or_best
from paucal.runs import RunFolder, open_model_folder
from paucal.runs.folder import CHOSEN_WEIGHTS, COCO, PUBLISHED_WEIGHTS, TIMM, find_run_of_file, iterate_ancestry
from paucal.runs.weights import read_untrusted, read_weights
from paucal.settings.options import automatic_origin
from paucal.settings.shared import JobSettings, ModelSettings
from paucal.types import UserError

M = TypeVar("M", bound=ModelSettings)
J = TypeVar("J", bound=JobSettings)
START_FILE = "init.json"  # name of the file in the run folder with the report on the initial weights
NONE, UNAVAILABLE = "none", "no pretrained weights available"
MIN_SIDE = 24  # in pixels; if the images' median shorter side is smaller, no pretrained weights are chosen
WEIGHTS_HELP = (
    'to use pretrained weights: pip install "paucal[weights]" (64 MB, Apache-2.0), go online, or run '
    "'paucal weights add'"
)


@dataclass(frozen=True)
class WeightsSource:
    """The source of a run's initial weights, before the weights are read; by default, the weights are random."""

    # Properties of the weights that the automatic choice of settings uses; None for random weights
    facts: InitialWeightsInfo | None = None
    # Reads the weights, given the timm name of the run's model; None for random weights
    read: Callable[[str], StartWeights] | None = None
    # Returns the preprocessing for the weights, given the timm name of the run's model; None if the
    # preprocessing is unknown
    input: Callable[[str], WeightsPreprocessing] | None = None
    record: LoadReport | None = None  # stored report on the initial weights of a resumed run


def without_none_init(settings: M) -> M:
    """Return settings in which an `init` of "none" is replaced by None."""
    return replace(settings, init=None) if settings.init == NONE else settings


def with_absolute_init_path(settings: M) -> M:
    """Return settings in which a path in `init` is replaced by the absolute path of its run folder or weights file."""
    if settings.init is None or settings.init in PUBLISHED_WEIGHTS:
        return settings
    path = _require_path(settings.init)
    return replace(settings, init=str((open_model_folder(path).path if path.is_dir() else path).resolve()))


def find_initial_weights(settings: ModelSettings, run: RunFolder | None = None) -> WeightsSource:
    """Return the source of the weights that `--init` names, without reading the weights.

    If `run` is a resumed run with a checkpoint, only the stored report on its initial weights is read.
    """
    if settings.init is not None and run is not None and run.last.exists():
        return _read_stored_report(run)
    if settings.init is None and getattr(settings, "init_head", "auto") != "auto":
        raise UserError("--init-head applies to the classifier of --init: give --init too, or remove --init-head.")
    if settings.init_network is not None and (settings.init is None or not Path(settings.init).expanduser().is_file()):
        raise UserError(
            f"--init-network {settings.init_network} names a network within a file: give the file to --init, or remove "
            "--init-network."
        )
    if settings.init is None:
        return WeightsSource()
    if settings.init == COCO:
        raise UserError(
            f"--init {COCO} is a detector, which only 'paucal detect' can start from: give --init {TIMM} or a file."
        )
    if settings.init in PUBLISHED_WEIGHTS:
        return WeightsSource(InitialWeightsInfo("timm's weights", normalise="model"), read_timm, input_of_weights)
    path = _require_path(settings.init)
    folder = RunFolder(path) if path.is_dir() else find_run_of_file(path)
    if folder is not None:
        card = read_card(folder)
        facts, image_input = _describe_run_weights(folder, card), card.preprocessing.image_input
        source = f"the run {folder.path}" if path.is_dir() else f"{path.name} of the run {folder.path}"
        read_tree = partial(read_weights, folder.weights) if path.is_dir() else partial(read_untrusted, path)
        return WeightsSource(
            facts,
            lambda _: StartWeights(
                read_tree(), source, card.backbone.name, card.classes or None, card.backbone.oblong_grid()
            ),
            lambda _: image_input,
        )
    source, read_tree, network = f"the file {path.name}", cache(lambda: read_untrusted(path)), settings.init_network
    # With --model, the model of the weights is neither needed nor always known.
    model = None if settings.model is not None else model_of_file(path, read_tree(), "--init")
    return WeightsSource(
        InitialWeightsInfo(source, model, normalise="model"),
        lambda _: StartWeights(read_tree() if network is None else pick_network(read_tree(), network, source), source),
        lambda name: checkpoint_preprocessing(find_program(read_tree()), name),
    )


def load_initial_weights(
    weights_source: WeightsSource, model: str | None, objective: Objective, classes: Sequence[str], head: Head = "auto"
) -> LoadReport | None:
    """Load the initial weights into every backbone of the objective; the heads of additional losses stay random.

    Return the report on the loaded weights, or the stored report of a resumed run; None for random weights.
    """
    if weights_source.read is None:
        return weights_source.record
    weights = weights_source.read(model or "")
    reports = [start_from(backbone.model, weights, classes, head) for backbone in objective.backbones()]
    input_values = {} if weights_source.input is None else asdict(weights_source.input(model or ""))
    undertrained = weights_source.facts is not None and weights_source.facts.undertrained
    return replace(reports[0], input=input_values, undertrained=undertrained)


def _require_path(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(
            f"--init: there is no file or run folder {name!r}: give a run folder such as runs/1, a weights file "
            f"(.safetensors, .pth), or {TIMM!r} for the weights that timm publishes."
        )
    return path


def _read_stored_report(run: RunFolder) -> WeightsSource:
    try:
        record = LoadReport.from_dict(run.read_json(START_FILE))
        image_input = WeightsPreprocessing.from_dict(record.input) if record.input else None  # missing in older runs
        if image_input is not None:
            Preprocessing.from_image_input((1, 1), image_input)  # raises an error for values out of range
    except TypeError as problem:
        path = str(run.path / START_FILE)
        raise UserError(f"{path!r} is not a paucal report ({problem}): restore the file or train again.") from problem
    return WeightsSource(input=None if image_input is None else lambda _: image_input, record=record)


def _describe_run_weights(run: RunFolder, card: ModelCard) -> InitialWeightsInfo:
    stored_args = run.settings.get("model_args")
    model_args = list(map(str, stored_args)) if isinstance(stored_args, list) else []
    patch_size = card.backbone.arguments.get("patch_size")
    if patch_size is not None and not any(argument.partition("=")[0] == "patch_size" for argument in model_args):
        # Otherwise, a model for another image size would be built with another patch size instead of more patches.
        model_args.append(f"patch_size={json.dumps(patch_size)}")
    return InitialWeightsInfo(
        str(run.path),
        card.backbone.name,
        card.backbone.image_size,
        tuple(model_args),
        "model",
        images_seen=count_images_seen(run),
    )


def count_images_seen(run: RunFolder) -> int | None:
    """Return how many images a run's weights have been trained on since random initialisation; None if unknown.

    This is epochs times training images, summed over the run and the earlier runs that provided its initial weights.
    """
    total = 0
    try:
        for ancestor in iterate_ancestry(run):
            summary, init = ancestor.read_json("summary.json"), ancestor.settings.get("init")
            images = summary.get("part_images", summary["parts"])["train"]
            total += round(float(summary["epochs"]) * (sum(images.values()) if isinstance(images, dict) else images))
            if init in (None, NONE):
                return total
    except (UserError, OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        pass  # a file is missing, or another program wrote it
    return None


@dataclass(frozen=True)
class WeightsChoice:
    """The automatic choice of a run's pretrained weights."""

    # timm names of models with pretrained weights, in order of preference; empty for training from scratch
    candidates: tuple[str, ...]
    why: str  # reason for the choice, which is printed with the settings
    remark: str = ""  # note for the user; "" if no note is needed


def chooses_initial_weights(settings: ModelSettings, origins: Collection[str], named: Collection[str] = ()) -> bool:
    """Return whether the initial weights of a run are chosen automatically.

    This is the case if `init` is "auto", which such a run stores, or if neither `init` nor a setting in `named` was
    given.
    """
    return settings.init == CHOSEN_WEIGHTS or (settings.init is None and not {"init", *named} & set(origins))


def choose_initial_weights(
    settings: J, origins: Mapping[str, str], side: int
) -> tuple[J, dict[str, str], WeightsChoice]:
    """Choose pretrained weights, and the model if none was given; return settings, origins and the choice.

    `side` is the median of the images' shorter sides in pixels.
    """
    choice = choose_weights(settings.model, device_or_best(settings.device), side)
    origins = {**origins, "init": automatic_origin(choice.why)}
    if not choice.candidates:
        return replace(settings, init=None), origins, choice
    origins = {"model": automatic_origin(choice.why), **origins}
    return replace(settings, init=CHOSEN_WEIGHTS, model=choice.candidates[0]), origins, choice


def choose_weights(model: str | None, device: str, side: int) -> WeightsChoice:
    """Look for pretrained weights in installed packages, in the cache, and briefly on the network.

    `model` is a timm name, or None for any; `side` is the median of the images' shorter sides in pixels.
    """
    if side < MIN_SIDE:
        return WeightsChoice((), f"images of {side} pixels are too small for pretrained weights")
    return _choose_for_model(model) if model is not None else _choose_for_any_model(device)


def _choose_for_model(model: str) -> WeightsChoice:
    added_weights = find_added_weights(model)
    if added_weights is not None:
        why = f"the weights that you added for {added_weights.name} ({added_weights.licence})"
        return WeightsChoice((model,), why, _licence_note(added_weights.licence))
    weights = find_packaged_weights(model)
    if weights is not None:
        return WeightsChoice(
            (model,), f"pretrained weights in the package {weights.package and weights.package.distribution}"
        )
    config = timm_config(model)
    if config is None or not config.has_weights:
        return WeightsChoice((), f"no pretrained weights of {model} are published")
    weights = PretrainedWeights(model, config.license or "licence not stated", 0, "published by timm")
    licence_note = _licence_note(weights.licence)
    if location_of(weights):
        why = f"pretrained weights in the cache of this machine ({weights.licence})"
        return WeightsChoice((model,), why, licence_note)
    problem = download_problem(weights)
    if problem is None:
        address = config.hf_hub_id or config.url
        return WeightsChoice((model,), f"pretrained weights, fetched from {address} ({weights.licence})", licence_note)
    remark = f"no pretrained weights of {model}: {problem}; the run starts from scratch"
    return WeightsChoice((), UNAVAILABLE, remark)


def _licence_note(licence: str) -> str:
    return (
        f"note: the licence of these weights, {licence}, has special terms: read the licence"
        if has_terms(licence)
        else ""
    )


def _choose_for_any_model(device: str) -> WeightsChoice:
    available = ready_weights(device)
    if available:
        descriptions = "; ".join(f"{weights.describe()} (from a {location})" for weights, location in available.items())
        names = tuple(weights.name for weights in available)
        return WeightsChoice(names, f"pretrained weights on this machine: {descriptions}")
    problem = ""
    for weights in suitable_weights(device)[:1]:
        problem = download_problem(weights) or ""
        if not problem:
            return WeightsChoice((weights.name,), f"pretrained weights, fetched: {weights.describe()}")
    return WeightsChoice(
        (),
        UNAVAILABLE,
        f"there are no pretrained weights on this machine, and none can be downloaded ({problem}): this run starts "
        f"from scratch, which needs many more images and hours; {WEIGHTS_HELP}",
    )
