"""`paucal.convert`: write a set in another layout."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from paucal.data.shards.writing import encode_image
from paucal.data.unreadable import drop_unreadable, process_images
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, takes_annotations
from paucal.runner.outputs import check_new_folder
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.convert.content import LabelledSet, read_labelled_set
from paucal.verbs.convert.settings import ConvertSettings, LayoutName
from paucal.verbs.convert.writing import LAYOUTS, Layout
from paucal.wording import counted
from paucal.writing import replace_folder


@dataclass(frozen=True)
class Converted:
    """Result of `paucal convert`.

    Attributes:
        folder: Folder of the images and their labels, for the command that trains on these labels.
        images: Number of images.
        lost: Numbers of objects or labels that the layout cannot store, by a description of what is lost.
        said: Lines that the command line prints.
    """

    folder: str
    images: int
    lost: dict[str, int]
    said: tuple[str, ...] = ()


@with_settings_signature(ConvertSettings)
@takes_annotations
def convert(data: Data, **settings: Any) -> Converted:
    """Write a set of images and labels in another layout; the same as `paucal convert`.

    Args:
        data: Images with labels, as in `paucal.detect`, `paucal.segment` or `paucal.train`.
        **settings: Any field of `paucal.verbs.convert.settings.ConvertSettings`; `output` and `to` are required.

    Returns:
        The folder, and the numbers of objects and labels that the layout could not store.

    Raises:
        UserError: The set cannot be read, its labels are not supported by the layout, or the output is invalid.
        TypeError: A setting does not exist.

    Example:
        >>> paucal.convert("cells/", to="coco", output="cells_coco/")  # doctest: +SKIP
    """
    console = RecordingConsole()
    values = {**settings, "data": data}
    result = convert_set(settings_from_keywords(ConvertSettings, values, "paucal.convert", "convert"), console)
    return replace(result, said=tuple(console.said))


def convert_set(settings: ConvertSettings, console: Console) -> Converted:
    """Write a set in another layout, and print a summary; see `convert`."""
    check_ranges(settings)
    if settings.to is None:
        raise UserError(f"--to is missing: give the layout to write, one of {', '.join(get_args(LayoutName))}.")
    if settings.output is None:
        raise UserError("OUT is missing: give a new folder for the images and their labels.")
    layout = LAYOUTS[settings.to]
    inputs = {"DATA": settings.data, "--images": settings.images, "--masks": settings.masks}
    target = check_new_folder(settings.output, inputs, settings.data_root, "OUT")
    with console.progress("reading labels") as advance:
        content = read_labelled_set(settings, layout.kinds, advance)
    for note in content.images.notes:
        console.say(f"note: {note}")
    if settings.on_bad_image == "skip":
        items, images = content.items, content.images
        with console.progress("checking images") as advance:
            problems = process_images(len(items), lambda row: images.store.check(items[row].index), advance)
        readable, _ = drop_unreadable(images, {items[row].index: problem for row, problem in problems.items()}, "skip")
        for note in readable.notes[len(images.notes) :]:
            console.say(f"note: {note}")
        content = replace(content, items=tuple(item for row, item in enumerate(items) if row not in problems))
    write_set(content, layout, target, console)
    return report_conversion(content, settings.to, target, console)


def write_set(content: LabelledSet, layout: Layout, target: Path, console: Console) -> None:
    """Write labels and images into a new folder; the folder appears only when it is complete."""
    with replace_folder(target) as folder, console.progress("copying images") as advance:
        layout.write(content, folder)
        for n_written, item in enumerate(content.items, 1):
            encoded = encode_image(content.images, item.index)
            if isinstance(encoded, str):
                raise UserError(f"{encoded}: repair the image, or skip it with --on-bad-image skip.")
            path = folder / layout.image_path(item)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded[0])
            advance(n_written, len(content.items))


def report_conversion(content: LabelledSet, to: LayoutName, target: Path, console: Console) -> Converted:
    """Print which labels were lost and the command that trains on the result, and return the result."""
    losses = {kind: count for kind, count in content.lost.items() if count}
    for kind, count in losses.items():
        console.say(f"lost: {kind}: {count}")
    if not losses:
        console.say("nothing is lost.")
    summary = f"{counted(len(content.items), 'image')} as {to} in {target}"
    command = f"paucal {'segment' if to == 'masks' else content.kind} {target}"
    if content.kind == "segment" and to != "masks":
        command = f"paucal convert {target} MASKS --to masks, and paucal segment MASKS"
    console.say(f"{summary}; to train on these images: {command}")
    return Converted(str(target), len(content.items), losses)
