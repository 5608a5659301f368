"""Parameters and multiply-adds of detectors and segmenters, counted on the meta device, where nothing is computed."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones import BackboneSpec
from paucal.backbones.cost import NoAttention
from paucal.tasks.detection.card import build_detector
from paucal.tasks.detection.cascade import CascadeHeads
from paucal.tasks.detection.detector import CELLS, Detector
from paucal.tasks.detection.instance_masks.head import CELLS as MASK_CELLS
from paucal.tasks.detection.options import DetectorOptions
from paucal.tasks.detection.region_heads import RegionHeads
from paucal.tasks.segmentation.network import segmentation_network

REGIONS = 1000  # that are judged in an image, as the published numbers count them
OBJECTS = 100  # that masks are made of, as they do


@dataclass(frozen=True)
class PartCost:
    """What a part of a network has, and takes for one image.

    Attributes:
        parameters: all of them, trained or not.
        macs: multiply-adds without the products of attention, as the programs of the papers count them.
    """

    parameters: int
    macs: int


def total(parts: Mapping[str, PartCost]) -> PartCost:
    """Return the sum of parts."""
    return PartCost(sum(one.parameters for one in parts.values()), sum(one.macs for one in parts.values()))


def detector_cost(
    spec: BackboneSpec, classes: int, options: DetectorOptions, regions: int = REGIONS
) -> dict[str, PartCost]:
    """Count a detector by its parts: "backbone", "pyramid", "proposals", "heads", and "masks" where it answers them.

    Finding proposals and pooling regions multiplies next to nothing and is not counted. Masks are those of 100 objects.

    Args:
        spec: of the backbone; its image size is that of the image, in pixels.
        classes: of objects.
        options: of the detector.
        regions: that each head judges.

    Raises:
        UserError: the backbone cannot be built, or gives no maps of the strides that are needed.

    Example:
        >>> options = DetectorOptions(channels=32, head_dim=16)
        >>> parts = detector_cost(BackboneSpec("resnet18", 0, image_size=(256, 256)), 3, options)
        >>> parts["backbone"].parameters, parts["proposals"].parameters
        (11176512, 9743)
    """
    with _empty():
        detector = build_detector(spec, classes, options).eval()
        images = torch.zeros(1, spec.in_chans, *spec.image_size)
        maps = detector.stages(images)
        named = {str(level): one for level, one in enumerate(maps)}
        pyramid = detector.pyramid(named)
        cells = torch.zeros(regions, options.channels, CELLS, CELLS)
        masks = _mask_layers(detector)
        inside = torch.zeros(OBJECTS, options.channels, MASK_CELLS, MASK_CELLS)
        heads, drawn = _part(detector.heads, cells, _judging(detector)), _part(masks, inside, _each(masks))
        return {
            "backbone": _part(detector.stages, images),
            "pyramid": _part(detector.pyramid, named),
            "proposals": _part(detector.proposals, list(pyramid.values()), detector.proposals.head),
            "heads": PartCost(heads.parameters - drawn.parameters, heads.macs),
            **({"masks": drawn} if options.masks else {}),
        }


def segmenter_cost(
    spec: BackboneSpec, classes: int, width: int = 512, auxiliary: int | None = 256
) -> dict[str, PartCost]:
    """Count UperNet by its parts: "backbone", "head" and "auxiliary", which answers do not go through.

    Args:
        spec: of the backbone; its image size is that of the image, in pixels.
        classes: of pixels.
        width: channels within the head.
        auxiliary: those within the auxiliary head; None without it.

    Raises:
        UserError: the backbone cannot be built, or keeps no grid.
    """
    with _empty():
        network = segmentation_network(spec, classes, width).eval()
        images = torch.zeros(1, spec.in_chans, *spec.image_size)
        parts = {"backbone": _part(network.maps, images), "head": _part(network.head, network.maps(images))}
        if auxiliary is not None:
            parts["auxiliary"] = PartCost(_parameters(network.auxiliary_head(auxiliary)), 0)
        return parts


@contextmanager
def _empty() -> Iterator[None]:
    """Let what is made within have shapes and no values, and draw nothing that anybody would miss."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
        warnings.simplefilter("ignore")
        yield


def _stages(detector: Detector) -> list[RegionHeads]:
    heads = detector.heads
    return heads.heads if isinstance(heads, CascadeHeads) else [heads]


def _judging(detector: Detector) -> Callable[[Tensor], Any]:
    def judge(cells: Tensor) -> None:
        for stage in _stages(detector):
            stage.box_predictor(stage.box_head(cells))

    return judge


def _mask_layers(detector: Detector) -> nn.ModuleList:
    """Return the layers for masks of each head; none where the detector answers boxes alone."""
    stages = [one for one in _stages(detector) if one.has_mask()]
    return nn.ModuleList(nn.Sequential(one.mask_head, one.mask_predictor) for one in stages)  # type: ignore[arg-type]


def _each(layers: nn.ModuleList) -> Callable[[Tensor], Any]:
    return lambda given: [one(given) for one in layers]


def _part(part: nn.Module, given: Any, run: Callable[[Any], Any] | None = None) -> PartCost:
    with FlopCounterMode(display=False) as counter, NoAttention():
        (run or part)(given)
    return PartCost(_parameters(part), counter.get_total_flops() // 2)


def _parameters(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())
