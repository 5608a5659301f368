"""Label maps from a run or a published classifier: `paucal label`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.data.channels.planes import RGB
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.maps.store import MapFacts, MapWriter
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import WholeImage
from paucal.evaluation.seen_images import keys_told
from paucal.labeling import DenseTeacher, write_maps
from paucal.labeling.write import TeacherCheck, check_teacher, hash_images
from paucal.models.named import find_named, open_named
from paucal.runner.console import Console
from paucal.runner.memory_check import check_batch_memory
from paucal.runs import RunFolder
from paucal.settings.options import check_size
from paucal.types import UserError
from paucal.verbs.label.settings import LEVEL
from paucal.verbs.label.writing import writing_maps
from paucal.wording import counted, percent

SAMPLE = 1000  # labelled images that the teacher is tried on
ALONE = 0.8  # of the accuracy on whole images, what the cells must keep


@dataclass(frozen=True)
class Teacher:
    """A classifier that is asked for dense labels.

    Attributes:
        name: for people.
        dense: the classifier, cell by cell.
        classes: names of its outputs.
        transform: makes its input of a whole image.
        run: that made it; None for timm's.
    """

    name: str
    dense: DenseTeacher
    classes: tuple[str, ...]
    transform: WholeImage
    run: RunFolder | None = None

    def told(self, images: ImageSet) -> frozenset[str]:
        """Return the keys of the images whose labels it was trained on."""
        return frozenset() if self.run is None else keys_told(self.run, images)


@dataclass(frozen=True)
class Labeled:
    """The label maps of a set of images.

    Attributes:
        folder: where they lie.
        images: how many there are.
        facts: who made them, the classes, and the grid of a map.
        check: how often the teacher is right on labelled images (its `whole` is 0 for published maps, which say
            nothing of whole images); None where the images have no labels.
        said: what the command line prints.
    """

    folder: Path
    images: int
    facts: MapFacts
    check: TeacherCheck | None
    said: tuple[str, ...] = ()


def label_images(
    images: ImageSet,
    teacher: Teacher,
    output: Path,
    console: Console,
    top: int = 5,
    min_accuracy: float = LEVEL,
    batch_size: int = 32,
    workers: int = 0,
) -> Labeled:
    """Try a teacher on labelled images, then write its map of every image.

    Args:
        images: the set; where it has labels the teacher is tried on some of them first.
        teacher: made by `open_teacher`.
        output: folder for the maps; one that is unfinished is gone on with.
        console: says what is found.
        top: classes kept at each cell.
        min_accuracy: share of the sample that the mean over the cells must get right.
        batch_size: images at a time.
        workers: processes that load images.

    Raises:
        UserError: the teacher knows other classes or knows too little, or the folder holds something else
            or is being written by another process.
    """
    device = next(teacher.dense.parameters()).device
    check_batch_memory(min(batch_size, len(images)), teacher.dense.backbone.image_size)
    found = _try(images, teacher, device, batch_size) if images.labelled else None
    if found is not None:
        console.say(
            f"teacher: {teacher.name}; on {found.images} labelled images it is right on {percent(found.whole)}, the "
            f"mean of its cells on {percent(found.cells)}"
        )
        require_knowledge(found, min_accuracy, console)
    else:
        console.say(f"teacher: {teacher.name}; the images have no labels, so it cannot be tried")
    told = teacher.told(images)
    facts = MapFacts(
        teacher.name,
        teacher.classes,
        teacher.dense.grid,
        min(top, len(teacher.classes)),
        tuple(key for key in images.keys if key in told),
    )
    with console.progress("looking at images") as advance:
        hashes = hash_images(images, advance)
    on_gpu = device.type == "cuda"
    with writing_maps(output, console, "labeling") as advance:
        writer = MapWriter(output, facts, images.keys, hashes)
        loader = make_eval_loader(images, writer.missing, teacher.transform, batch_size, workers, pin_memory=on_gpu)
        write_maps(teacher.dense, writer, loader, facts.top, advance)  # type: ignore[arg-type]
    say_what_lies(facts, len(images), output, console)
    return Labeled(output, len(images), facts, found)


def open_teacher(name: str, image_size: Sequence[int] | None, device: str) -> Teacher:
    """Open a run, or a timm model with its published weights, as a teacher.

    Args:
        name: a run folder, or the name of a timm model.
        image_size: (height, width) in pixels to look at images with; by default what it was trained at. A larger one
            gives finer maps.
        device: where to put it.

    Raises:
        UserError: there is no such teacher, or it cannot look at images of that size or at single cells.
    """
    check_size(image_size)
    model, found = open_named(name, device, image_size, "--teacher"), find_named(name)
    card, prepare = model.card, model.card.preprocessing
    if card.several:
        raise UserError(
            f"--teacher: {name} gives several labels for an image, and token labels are shares of one: train a teacher "
            "on images with one label each."
        )
    if prepare.channels != RGB:
        raise UserError(
            f"--teacher: {name} reads {prepare.channels} channels, and label maps are made of images in RGB: give "
            "another teacher."
        )
    run = found if isinstance(found, RunFolder) else None
    size, normalisation = prepare.image_size, Normalisation(prepare.mean, prepare.std)
    transform = WholeImage(size, normalisation, "bicubic" if run is None else prepare.interpolation)
    dense = DenseTeacher(model.module, size).to(model.device)
    return Teacher(name if run is None else str(run.path), dense, card.classes, transform, run)


def say_what_lies(facts: MapFacts, count: int, output: Path, console: Console) -> None:
    """Say how many maps there are, of what kind, and where."""
    console.say(
        f"{counted(count, 'map')} of {facts.grid[0]}x{facts.grid[1]} cells with {facts.top} of {len(facts.classes)} "
        f"classes, {facts.bytes_per_image / 1024:.1f} KiB each, lie in {output}"
    )


def _try(images: ImageSet, teacher: Teacher, device: torch.device, batch_size: int) -> TeacherCheck:
    if set(images.classes) - set(teacher.classes):
        unknown = next(name for name in images.classes if name not in set(teacher.classes))
        raise UserError(
            f"--teacher: {teacher.name} does not know the class {unknown!r} of {images.name}: train a teacher on these "
            "images, for instance with 'paucal train DATA --model resnet50 --init timm'."
        )
    ordered = images.with_classes(teacher.classes)
    return check_teacher(teacher.dense, ordered, _sample(images, teacher), teacher.transform, device, batch_size)


def _sample(images: ImageSet, teacher: Teacher) -> NDArray[np.int64]:
    """Return images that the teacher was not trained on, else any, spread over the set."""
    told = teacher.told(images)
    new = [index for index, key in enumerate(images.keys) if key not in told]
    pool = np.asarray(new or range(len(images)), dtype=np.int64)
    return pool[np.linspace(0, len(pool) - 1, min(SAMPLE, len(pool))).round().astype(np.int64)]


def require_knowledge(found: TeacherCheck, level: float, console: Console) -> None:
    """Refuse maps that are right too rarely; raises a UserError."""
    if found.cells < level:
        raise UserError(
            f"the mean of the cells is right on {percent(found.cells)} of the images, under --min-accuracy "
            f"{level:g}: its maps would teach mistakes; train a better teacher, or lower the level to go on."
        )
    if found.cells < ALONE * found.whole:
        console.say(
            "note: single cells know less than the whole image; a teacher that classifies the mean of its cells (a "
            "ResNet, ConvNeXt or Swin) gives better maps than one with a class token"
        )
