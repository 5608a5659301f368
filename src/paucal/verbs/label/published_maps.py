"""Label maps that others have published, made into a folder of ours: `paucal label --from-published`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.maps.store import MapFacts, MapWriter
from paucal.labeling.published import MOST_CLASSES, find_maps, mean_over_cells, read_map, read_maps
from paucal.labeling.write import TeacherCheck, hash_images
from paucal.runner.console import Console
from paucal.types import UserError
from paucal.verbs.label.make_maps import SAMPLE, Labeled, require_knowledge, say_what_lies
from paucal.verbs.label.settings import LEVEL
from paucal.verbs.label.writing import writing_maps
from paucal.wording import percent


def convert_published(
    images: ImageSet,
    folder: Path,
    output: Path,
    console: Console,
    classes: Sequence[str] | None = None,
    min_accuracy: float = LEVEL,
) -> Labeled:
    """Turn published maps, one file per image, into a folder of ours.

    They keep their raw logits, under which a class that is not named counts as zero, and cover the central square of
    each image; what lies beside it is left out of the loss.

    Args:
        images: the set; only those of its images that have a map are kept, which all training images must have.
        folder: holds class folders with one file per image.
        output: folder for the maps; one that is unfinished is gone on with.
        console: says what is found.
        classes: names of the maps' classes in the order of their numbers; by default those of the set.
        min_accuracy: share of a sample of labelled images that the mean over the cells must get right.

    Raises:
        UserError: a map is missing, damaged or of another shape, or the maps are right too rarely.
    """
    names = tuple(classes or images.classes)
    if not 2 <= len(names) <= MOST_CLASSES:
        raise UserError(f"published maps number from 2 to {MOST_CLASSES} classes, and {len(names)} are named.")
    positions, files = find_maps(images, folder)
    labelled = images.select(positions)
    found = _try_published(labelled, files, names) if labelled.labelled else None
    if found is not None:
        console.say(
            f"maps: {folder}; on {found.images} labelled images the mean of the cells is right on "
            f"{percent(found.cells)}"
        )
        require_knowledge(found, min_accuracy, console)
    shape = read_map(files[0], len(names))[0].shape
    facts = MapFacts(f"published maps in {folder.name}", names, (shape[1], shape[2]), shape[0], covered="square")
    with console.progress("looking at images") as advance:
        hashes = hash_images(labelled, advance)
    with writing_maps(output, console, "converting") as advance:
        writer = MapWriter(output, facts, labelled.keys, hashes)
        missing = writer.missing
        for first, values, indices in read_maps([files[row] for row in missing], len(names), shape):
            writer.write(missing[first : first + len(values)].tolist(), values, indices)
            advance(len(writer) - len(missing) + first + len(values), len(writer))
    say_what_lies(facts, len(files), output, console)
    return Labeled(output, len(files), facts, found)


def _try_published(images: ImageSet, files: Sequence[Path], names: tuple[str, ...]) -> TeacherCheck:
    unknown = sorted(set(images.classes) - set(names))
    if unknown:
        raise UserError(
            f"--published-classes: {images.name} has a class {unknown[0]!r} that is not among the {len(names)} names: "
            "name the maps' classes as the data does."
        )
    ordered, right = images.with_classes(names), 0
    sample = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(np.int64)
    for position in sample:
        logits = mean_over_cells(*read_map(files[position], len(names)), len(names))
        right += int(logits.argmax()) == ordered.labels[position]
    return TeacherCheck(len(sample), 0.0, right / len(sample))
