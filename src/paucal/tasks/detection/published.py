"""torchvision's detectors trained on COCO, as initial weights of a run (`--init coco`).

A run starts with the backbone, feature pyramid, proposal network and heads of such a detector. In the layers with
outputs per class, the run's classes that are also in COCO get the published weights. Other classes get the mean over
COCO's classes in the layers for boxes and masks, and random weights in the layer for class scores.
"""

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models import detection

from paucal.backbones.weights.checkpoints import WeightsPreprocessing
from paucal.backbones.weights.load_report import LoadReport
from paucal.rules.resolve import InitialWeightsInfo
from paucal.runner.initial_weights import WeightsSource, find_initial_weights
from paucal.runner.job import Bars
from paucal.runs import RunFolder
from paucal.runs.folder import COCO
from paucal.runs.weights import read_untrusted
from paucal.settings.options import automatic_origin, flag
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError

LICENCE = "BSD-3-Clause"
TIMEOUT_SECONDS = 5.0  # timeout of the request that checks whether the weights can be downloaded
PREFIXES = {  # prefixes of parameter names in torchvision, mapped to those in paucal
    "backbone.body.": "stages.backbone.model.",
    "backbone.fpn.": "pyramid.",
    "rpn.": "proposals.",
    "roi_heads.": "heads.",
}
# Layers of the heads with outputs per class, mapped to the number of output rows per class
PER_CLASS = {
    "roi_heads.box_predictor.cls_score": 1,
    "roi_heads.box_predictor.bbox_pred": 4,
    "roi_heads.mask_predictor.mask_fcn_logits": 1,
}
CLASS_LAYER = "roi_heads.box_predictor.cls_score"  # layer for class scores
# Settings of paucal with which a detector has the same layers as torchvision's detectors
SHARED_SETTINGS = {"pyramid_channels": 256, "head_dim": 1024, "cascade": False}
RESNET_SETTINGS = {
    **{"model": "resnet50", "finest": 4, "anchor": 8, "pyramid_norm": "batch", "proposal_layers": 2},
    **{"head": "4conv1fc", "mask_norm": "batch", **SHARED_SETTINGS},
}
MOBILENET_SETTINGS = {
    **{"model": "mobilenetv3_large_100", "maps": "last-blocks", "anchor_sides": "five", "pyramid_norm": "none"},
    **{"head": "2fc", "masks": "off", "finest": 32, "anchor": 1, **SHARED_SETTINGS},
}


@dataclass(frozen=True)
class PublishedDetector:
    """A detector that torchvision has trained on COCO, and the settings of a run that build the same layers."""

    title: str
    weights: Any  # member of torchvision's weights enumeration
    settings: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Path of the weights in torch's cache."""
        return Path(torch.hub.get_dir()) / "checkpoints" / self.weights.url.rpartition("/")[2]

    def describe(self) -> str:
        """Return the title with the size and the licence of the file."""
        return f"torchvision's {self.title}, trained on COCO ({self.weights.meta['_file_size']:.0f} MB, {LICENCE})"


MASK_RESNET = detection.MaskRCNN_ResNet50_FPN_V2_Weights.COCO_V1
RESNET = detection.FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1
MOBILENET = detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1
PUBLISHED = (
    PublishedDetector("Mask R-CNN with ResNet-50 FPN v2", MASK_RESNET, {**RESNET_SETTINGS, "masks": "on"}),
    PublishedDetector("Faster R-CNN with ResNet-50 FPN v2", RESNET, {**RESNET_SETTINGS, "masks": "off"}),
    PublishedDetector("Faster R-CNN with MobileNetV3-Large 320 FPN", MOBILENET, MOBILENET_SETTINGS),
)


def choose_published_detector(settings: DetectSettings, has_outlines: bool) -> PublishedDetector:
    """Return the published detector for these settings, by default with ResNet-50, and with masks if possible."""
    needs_masks = settings.masks == "on" or (settings.masks in (None, "auto") and has_outlines)
    candidates = [candidate for candidate in PUBLISHED if settings.model in (None, candidate.settings["model"])]
    if not candidates:
        models = " or ".join(dict.fromkeys(candidate.settings["model"] for candidate in PUBLISHED))
        raise UserError(
            f"--init {COCO} has detectors with {models}, but --model is {settings.model}: give one of these models."
        )
    return next(
        (candidate for candidate in candidates if candidate.settings["masks"] == ("on" if needs_masks else "off")),
        candidates[-1],
    )


def adopt_published_settings(
    settings: DetectSettings, origins: Mapping[str, str], has_outlines: bool
) -> tuple[DetectSettings, dict[str, str]]:
    """Return settings that build the layers of the published detector, with the origins of all settings."""
    published = choose_published_detector(settings, has_outlines)
    for name, value in published.settings.items():
        if name in origins and getattr(settings, name) not in (value, "auto", None):
            raise UserError(
                f"{flag(name)} is {getattr(settings, name)}, but {published.title} of --init {COCO} has {value}: "
                f"remove {flag(name)}, or start from a classifier with --init timm."
            )
    reasons = {name: automatic_origin(f"as in {published.title}") for name in published.settings if name not in origins}
    return replace(settings, **published.settings), {**origins, **reasons}


def find_detector_weights(settings: DetectSettings, run: RunFolder | None) -> WeightsSource:
    """Find the initial weights of a run; the weights of a published detector are read later by `load_published`."""
    if settings.init != COCO or (run is not None and run.last.exists()):
        return find_initial_weights(settings, run)
    facts = InitialWeightsInfo("torchvision's detector", settings.model, normalise="model")
    return WeightsSource(facts, input=lambda _: WeightsPreprocessing())


def load_published(detector: Detector, settings: DetectSettings, classes: Sequence[str], bars: Bars) -> LoadReport:
    """Load the published detector for these settings into `detector`; download the weights if they are not cached."""
    published = choose_published_detector(settings, settings.masks == "on")
    names = published.weights.meta["categories"]
    tree = read_untrusted(_cached_file(published, bars))
    state, coco_classes = _convert_names(tree, detector.state_dict(), names, classes)
    own_state = detector.state_dict()
    needed = [name for name in own_state if not name.endswith("num_batches_tracked")]
    mismatched = [name for name in needed if name not in state or state[name].shape != own_state[name].shape]
    if mismatched or not all(value.isfinite().all() for value in state.values()):
        raise UserError(
            f"{str(published.path)!r} is not {published.title}, or is damaged ({', '.join(mismatched[:3])}): remove "
            "the file to download it again."
        )
    detector.load_state_dict({name: value for name, value in state.items() if name in own_state}, strict=False)
    class_text = "random, since COCO has none of these classes"
    if coco_classes:
        class_text = f"those of {', '.join(coco_classes)} from COCO"
    return LoadReport(
        published.describe(), "", 1.0, class_text, loaded=tuple(state), input=vars(WeightsPreprocessing())
    )


def _convert_names(
    published_state: Mapping[str, Any],
    own_state: Mapping[str, Tensor],
    coco_categories: Sequence[str],
    classes: Sequence[str],
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert a published state dict to the run's parameter names and classes; also return the classes in COCO."""
    index_of = {name.lower(): index for index, name in enumerate(coco_categories)}
    rows = [index_of.get(name.strip().lower().replace("_", " ")) for name in classes]
    body = PREFIXES["backbone.body."]
    body_names = (name for name in own_state if name.startswith(body) and not name.endswith("_tracked"))
    state: dict[str, Tensor] = {}
    for name, value in published_state.items():
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
        if prefix is None or not isinstance(value, Tensor) or name.endswith("_tracked"):
            continue
        renamed = PREFIXES[prefix] + name.removeprefix(prefix)
        # torchvision's MobileNet has other parameter names than timm's, but in the same order.
        if prefix == "backbone.body." and renamed not in own_state:
            renamed = next(body_names, renamed)
        layer = name.rpartition(".")[0]
        if layer in PER_CLASS:
            # The rows of the background come first, then those of each category of COCO.
            grouped = value.unflatten(0, (-1, PER_CLASS[layer]))
            # A class that is not in COCO gets the mean over COCO's categories, or keeps its random weights.
            other_rows = [grouped[1:].mean(0)] * len(rows)
            if layer == CLASS_LAYER and renamed in own_state:
                other_rows = [*own_state[renamed].unflatten(0, (-1, PER_CLASS[layer]))[1:]] or other_rows
            class_rows = [other if row is None else grouped[row] for row, other in zip(rows, other_rows, strict=True)]
            value = torch.stack([grouped[0], *class_rows]).flatten(0, 1)
        state[renamed] = value.float()
    return state, [name for name, index in zip(classes, rows, strict=True) if index is not None]


def _cached_file(published: PublishedDetector, bars: Bars) -> Path:
    """Return the path of the weights in torch's cache; download the weights if they are not cached."""
    path, url = published.path, published.weights.url
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_SECONDS):
            pass
        with bars(f"fetching {published.describe()}"):
            torch.hub.download_url_to_file(url, str(path), path.stem.rpartition("-")[2], progress=False)
    except (OSError, RuntimeError) as problem:
        reason = str(getattr(problem, "reason", problem)).split("\n")[0]
        raise UserError(
            f"--init {COCO} starts from {published.describe()}, whose weights are not cached and cannot be downloaded "
            f"({reason}): copy {url} to {str(path)!r} from a machine with a network, or give --init timm or a run."
        ) from problem
    return path
