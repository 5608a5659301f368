"""Numbers of parameters and multiply-adds of a detector, counted on the meta device without computation."""

import torch
from torch import Tensor, nn

from paucal.backbones import BackboneSpec
from paucal.backbones.cost import SubmoduleCost, counting_on_meta_device, submodule_cost
from paucal.tasks.detection.network.cascade import CascadeHeads
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.network.options import DetectorOptions
from paucal.tasks.detection.network.region_heads import BOX_POOL_SIZE, MASK_POOL_SIZE
from paucal.tasks.detection.settings import DetectSettings, detector_options

# Proposals per image that the heads classify by default, and objects per image whose masks are predicted, as in
# published numbers of multiply-adds.
REGIONS, OBJECTS = 1000, 100


def detector_cost(
    spec: BackboneSpec, classes: int, options: DetectorOptions | DetectSettings, regions: int = REGIONS
) -> dict[str, SubmoduleCost]:
    """Return the costs of a detector's "backbone", "pyramid", "proposals", "heads" and, if it predicts masks, "masks".

    Non-maximum suppression and region pooling are not counted, since they take few multiplications.

    Args:
        spec: Backbone, with the image size in pixels.
        classes: Number of classes of objects.
        options: Options of the detector, or the settings that determine them.
        regions: Number of proposals per image that each head classifies.

    Example:
        >>> options = DetectorOptions(channels=32, head_dim=16)
        >>> parts = detector_cost(BackboneSpec("resnet18", 0, image_size=(256, 256)), 3, options)
        >>> parts["backbone"].parameters, parts["proposals"].parameters
        (11176512, 9743)
    """
    options = detector_options(options) if isinstance(options, DetectSettings) else options
    with counting_on_meta_device():
        detector = build_detector(spec, classes, options).eval()
        stages = detector.heads.heads if isinstance(detector.heads, CascadeHeads) else [detector.heads]
        mask_layers = nn.ModuleList(
            nn.Sequential(stage.mask_head, stage.mask_predictor)  # type: ignore[arg-type]
            for stage in stages
            if stage.has_mask()
        )

        def predict_boxes(pooled: Tensor) -> None:
            for stage in stages:
                stage.box_predictor(stage.box_head(pooled))

        def predict_masks(pooled: Tensor) -> None:
            for layers in mask_layers:
                layers(pooled)

        images = torch.zeros(1, spec.in_chans, *spec.image_size)
        maps = {str(level): grid for level, grid in enumerate(detector.stages(images))}
        levels = list(detector.pyramid(maps).values())
        heads = submodule_cost(
            detector.heads, torch.zeros(regions, options.channels, BOX_POOL_SIZE, BOX_POOL_SIZE), predict_boxes
        )
        masks = submodule_cost(
            mask_layers, torch.zeros(OBJECTS, options.channels, MASK_POOL_SIZE, MASK_POOL_SIZE), predict_masks
        )
        return {
            "backbone": submodule_cost(detector.stages, images),
            "pyramid": submodule_cost(detector.pyramid, maps),
            "proposals": submodule_cost(detector.proposals, levels, detector.proposals.head),
            "heads": SubmoduleCost(heads.parameters - masks.parameters, heads.macs),
            **({"masks": masks} if options.masks else {}),
        }
