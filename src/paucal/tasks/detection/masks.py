"""Whether a run learns masks, and what its detector is called."""

from paucal.tasks.detection.annotations import BoxedImages
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import UserError
from paucal.wording import counted


def kind_of(settings: DetectSettings) -> str:
    """Return the name of the detector in the papers.

    Example:
        >>> kind_of(DetectSettings(cascade=True, masks="on"))
        'Cascade Mask R-CNN'
    """
    if settings.masks == "on":
        return "Cascade Mask R-CNN" if settings.cascade else "Mask R-CNN"
    return "Cascade R-CNN" if settings.cascade else "Faster R-CNN"


def with_masks(settings: DetectSettings, boxed: BoxedImages) -> BoxedImages:
    """Return the images with the masks that are learnt, or without any.

    Args:
        settings: with `masks` chosen.
        boxed: the images as they were read.

    Raises:
        UserError: masks are wanted and a box has no outline, or objects shall be pasted without masks.
    """
    if settings.masks == "on" and boxed.bare:
        raise UserError(
            f"--masks on takes an outline of every box, and {boxed.bare} of "
            f"{counted(boxed.total, 'box', 'boxes')} have none: give COCO's JSON with a 'segmentation' for each, or "
            "leave --masks out."
        )
    if settings.masks == "on":
        return boxed
    if settings.copy_paste:
        raise UserError(
            f"--copy-paste {settings.copy_paste:g} cuts objects out by their masks, and there are none: masks are off, "
            "or boxes lack an outline; give each box an outline and leave --masks out, or leave --copy-paste out."
        )
    return boxed.without_masks()
