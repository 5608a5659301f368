"""The backbone and the detector that settings describe."""

from dataclasses import replace

from paucal.backbones import BackboneSpec
from paucal.rules.backbone import backbone_spec
from paucal.settings.options import flag
from paucal.tasks.detection.heads import HEADS
from paucal.tasks.detection.options import DetectorOptions
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError
from paucal.wording import did_you_mean

LARGEST_SIDE, MULTIPLE = 1333, 32  # pixels
# What settings and options of a detector call alike.
ALIKE = (
    *("cascade", "head", "cascade_boxes", "cascade_average", "box_loss", "proposal_loss", "matching"),
    *("pooling", "pyramid_norm"),
)

STRIDES = (4, 8, 16, 32)  # pixels, of the finest map
OF_CASCADES = {"cascade_boxes": "shared", "cascade_average": "probabilities"}  # and what a single head leaves them at


def check_structure(settings: DetectSettings) -> None:
    """Refuse parts of a detector that do not exist, or do not go together.

    Raises:
        UserError: A head or a stride is unknown, or a setting of cascades is given to a detector of one head.
    """
    if settings.head not in HEADS:
        raise UserError(
            f"--head is {settings.head!r}{did_you_mean(settings.head, HEADS)}, expected one of {', '.join(HEADS)}."
        )
    if settings.finest is not None and settings.finest not in STRIDES:
        raise UserError(f"--finest is {settings.finest}, and maps have strides of 4, 8, 16 and 32 pixels: give one.")
    for name, single in OF_CASCADES.items():
        if not settings.cascade and getattr(settings, name) != single:
            raise UserError(
                f"{flag(name)} is {getattr(settings, name)}, and only a cascade has several heads: give --cascade, or "
                "leave it out."
            )


def detector_parts(settings: DetectSettings) -> tuple[BackboneSpec, DetectorOptions, list[str]]:
    """Return the backbone and the options of the detector that settings describe, and sentences on what was chosen.

    Raises:
        UserError: the backbone's name is unknown, or it cannot take images of that size.
    """
    canvas = -(-max(settings.img_size) // MULTIPLE) * MULTIPLE
    spec, notes = backbone_spec(replace(settings, img_size=[canvas, canvas]), 0)
    return spec, detector_options(settings), notes


def detector_options(settings: DetectSettings) -> DetectorOptions:
    """Return the options of the detector that settings describe; what is left open is as published."""
    return DetectorOptions(
        *(settings.pyramid_channels, settings.head_dim, settings.finest, settings.anchor),
        *(settings.regions, settings.proposals),
        masks=settings.masks == "on",
        candidates=settings.candidates or 0,
        **{name: getattr(settings, name) for name in ALIKE},
    )
