"""Detectors that torchvision publishes, trained on COCO, as the start of a run: `--init coco`.

A run gets their backbone, pyramid, proposals and heads. Classes are replaced: classes that COCO also has keep their
weights; others start with COCO's mean box and mask, and a random score.
"""

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models import detection

from paucal.backbones.weights.inputs import ImageInput
from paucal.backbones.weights.load_report import LoadReport
from paucal.rules.facts import StartFacts
from paucal.runner.job import Bars
from paucal.runner.starts import Start, find_start
from paucal.runs import RunFolder
from paucal.runs.folder import COCO
from paucal.runs.weights import read_foreign
from paucal.settings.options import flag
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError

LICENCE = "BSD-3-Clause"
SECONDS = 5.0  # timeout of the server
PARTS = {
    "backbone.body.": "stages.backbone.model.",
    "backbone.fpn.": "pyramid.",
    "rpn.": "proposals.",
    "roi_heads.": "heads.",
}
# Layers of the heads whose rows belong to classes, with the number of rows per class.
PER_CLASS = {
    "roi_heads.box_predictor.cls_score": 1,
    "roi_heads.box_predictor.bbox_pred": 4,
    "roi_heads.mask_predictor.mask_fcn_logits": 1,
}
SCORES = "roi_heads.box_predictor.cls_score"
SHARED = {"pyramid_channels": 256, "head_dim": 1024, "cascade": False}
RESNET = {
    **{"model": "resnet50", "finest": 4, "anchor": 8, "pyramid_norm": "batch", "proposal_layers": 2},
    **{"head": "4conv1fc", "mask_norm": "batch", **SHARED},
}
MOBILENET = {
    **{"model": "mobilenetv3_large_100", "maps": "last-blocks", "anchor_sides": "five", "pyramid_norm": "none"},
    **{"head": "2fc", "masks": "off", "finest": 32, "anchor": 1, **SHARED},
}


@dataclass(frozen=True)
class PublishedDetector:
    """A published detector: torchvision's entry of its weights, and settings of a run that builds the same layers."""

    title: str
    weights: Any
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Place of the weights in the cache of torch."""
        return Path(torch.hub.get_dir()) / "checkpoints" / self.weights.url.rpartition("/")[2]

    def describe(self) -> str:
        """Return the name with the size and the licence of the file."""
        return f"torchvision's {self.title}, trained on COCO ({self.weights.meta['_file_size']:.0f} MB, {LICENCE})"


PUBLISHED = (
    PublishedDetector(
        "Mask R-CNN with ResNet-50 FPN v2",
        detection.MaskRCNN_ResNet50_FPN_V2_Weights.COCO_V1,
        {**RESNET, "masks": "on"},
    ),
    PublishedDetector(
        "Faster R-CNN with ResNet-50 FPN v2",
        detection.FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1,
        {**RESNET, "masks": "off"},
    ),
    PublishedDetector(
        "Faster R-CNN with MobileNetV3-Large 320 FPN",
        detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1,
        MOBILENET,
    ),
)


def choose_published(settings: DetectSettings, outlined: bool) -> PublishedDetector:
    """Return the published detector of some settings: ResNet-50 by default, with masks if the objects have outlines."""
    masks = settings.masks == "on" or (settings.masks in (None, "auto") and outlined)
    candidates = [candidate for candidate in PUBLISHED if settings.model in (None, candidate.settings["model"])]
    if not candidates:
        models = " or ".join(dict.fromkeys(candidate.settings["model"] for candidate in PUBLISHED))
        raise UserError(
            f"--init {COCO} has detectors with {models}, but --model is {settings.model}: give one of them."
        )
    return next(
        (candidate for candidate in candidates if candidate.settings["masks"] == ("on" if masks else "off")),
        candidates[-1],
    )


def adopt_published(
    settings: DetectSettings, given: Mapping[str, str], outlined: bool
) -> tuple[DetectSettings, dict[str, str]]:
    """Return settings that build the layers of the published detector, with the origins of all settings."""
    published = choose_published(settings, outlined)
    for name, value in published.settings.items():
        if name in given and getattr(settings, name) not in (value, "auto", None):
            raise UserError(
                f"{flag(name)} is {getattr(settings, name)}, but {published.title} of --init {COCO} has {value}: leave "
                f"it out, or start from a classifier with --init timm."
            )
    reasons = {name: f"auto: as in {published.title}" for name in published.settings if name not in given}
    return replace(settings, **published.settings), {**given, **reasons}


def start_of(settings: DetectSettings, run: RunFolder | None) -> Start:
    """Find the weights that `--init` names; those of a published detector are read by `load_published`."""
    if settings.init != COCO or (run is not None and run.last.exists()):
        return find_start(settings, run)
    facts = StartFacts("torchvision's detector", settings.model, normalise="model")
    return Start(facts, input=lambda _: ImageInput())


def load_published(detector: Detector, settings: DetectSettings, classes: Sequence[str], bars: Bars) -> LoadReport:
    """Load the published detector of some settings, fetched if it is not in the cache."""
    published = choose_published(settings, settings.masks == "on")
    names = published.weights.meta["categories"]
    tree = read_foreign(_cached_file(published, bars))
    state, coco_classes = _convert_names(tree, detector.state_dict(), names, classes)
    own_state = detector.state_dict()
    needed = [name for name in own_state if not name.endswith("num_batches_tracked")]
    misfits = [name for name in needed if name not in state or state[name].shape != own_state[name].shape]
    if misfits or not all(value.isfinite().all() for value in state.values()):
        raise UserError(
            f"{str(published.path)!r} is not {published.title}, or is damaged ({', '.join(misfits[:3])}): remove "
            "it to fetch it again."
        )
    detector.load_state_dict({name: value for name, value in state.items() if name in own_state}, strict=False)
    class_text = f"those of {', '.join(coco_classes)} from COCO" if coco_classes else "fresh, as COCO has none of them"
    return LoadReport(published.describe(), "", 1.0, class_text, loaded=tuple(state), input=vars(ImageInput()))


def _convert_names(
    tree: Mapping[str, Any], own_state: Mapping[str, Tensor], names: Sequence[str], classes: Sequence[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors under our detector's names, with a row for each of its classes, and its classes in COCO."""
    index_of = {name.lower(): index for index, name in enumerate(names)}
    rows = [index_of.get(name.strip().lower().replace("_", " ")) for name in classes]
    body = [name for name in own_state if name.startswith(PARTS["backbone.body."]) and not name.endswith("_tracked")]
    state: dict[str, Tensor] = {}
    body_names = iter(body)
    for name, value in tree.items():
        prefix = next((prefix for prefix in PARTS if name.startswith(prefix)), None)
        if prefix is None or not isinstance(value, Tensor) or name.endswith("_tracked"):
            continue
        renamed = PARTS[prefix] + name.removeprefix(prefix)
        # MobileNet's names differ, but the order is the same.
        if prefix == "backbone.body." and renamed not in own_state:
            renamed = next(body_names, renamed)
        layer = name.rpartition(".")[0]
        if layer in PER_CLASS:
            fresh = own_state[renamed] if layer == SCORES and renamed in own_state else None
            value = _take_classes(value, PER_CLASS[layer], rows, fresh)
        state[renamed] = value.float()
    return state, [name for name, index in zip(classes, rows, strict=True) if index is not None]


def _take_classes(value: Tensor, rows_per_class: int, rows: Sequence[int | None], fresh: Tensor | None) -> Tensor:
    """Return the rows of the background and of classes, each with `rows_per_class` of them, at places in COCO.

    Classes without a place keep the fresh rows of our detector, or get the mean of COCO's classes.
    """
    grouped = value.unflatten(0, (-1, rows_per_class))
    mean = grouped[1:].mean(0)
    fresh_rows = [] if fresh is None else [*fresh.unflatten(0, (-1, rows_per_class))[1:]]
    class_rows = fresh_rows or [mean] * len(rows)
    return torch.stack(
        [grouped[0], *(other if row is None else grouped[row] for row, other in zip(rows, class_rows, strict=True))]
    ).flatten(0, 1)


def _cached_file(published: PublishedDetector, bars: Bars) -> Path:
    """Return the file of the weights, fetched if it is not in the cache."""
    path, url = published.path, published.weights.url
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS):
            pass
        with bars(f"fetching {published.describe()}"):
            torch.hub.download_url_to_file(url, str(path), path.stem.rpartition("-")[2], progress=False)
    except (OSError, RuntimeError) as problem:
        reason = str(getattr(problem, "reason", problem)).split("\n")[0]
        raise UserError(
            f"--init {COCO} starts from {published.describe()}, which are not in the cache and cannot be fetched "
            f"({reason}): copy {url} to {str(path)!r} from a machine with a network, or give --init timm or a run."
        ) from problem
    return path
