"""Images with boxes, opened in any layout of the table of layouts."""

from dataclasses import replace
from pathlib import Path

from paucal.data.boxes.annotations import AnnotationSet
from paucal.data.boxes.opening import read_boxes
from paucal.reading import named_path
from paucal.tasks.detection.annotations import BoxedImages, boxed_images
from paucal.types import UserError


def open_boxed(location: str | Path, outlines: bool = True) -> BoxedImages:
    """Open images with boxes.

    Args:
        location: Folder, zip or tar file, or annotation file of a set.
        outlines: Whether to read the outlines of objects where there are some.

    Raises:
        UserError: The place does not exist, holds no annotations of boxes, or they are invalid; see the readers.
    """
    path = named_path(str(location), "DATA")
    if not path.exists():
        raise UserError(f"there is no file or folder {str(location)!r}: give a folder of images with boxes.")
    tree, described = read_boxes(path)
    return boxed_images(tree, described if outlines else _without_outlines(described))


def _without_outlines(described: AnnotationSet) -> AnnotationSet:
    return replace(described, images=[replace(one, outlines=[]) for one in described.images])
