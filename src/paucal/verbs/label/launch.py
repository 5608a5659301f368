"""`paucal.label`: make label maps with a run or a published classifier, or convert published label maps.

Only one process at a time may write into a folder of maps, since two processes would both compute the missing maps.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paucal.data.channels.pixels import RGB
from paucal.data.classes import read_class_list
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader
from paucal.data.maps.reader import LabelMaps
from paucal.data.maps.store import LabelMapMetadata, MapWriter, pixel_hashes, require_maps_or_empty
from paucal.data.views.transforms import WholeImageTransform
from paucal.evaluation.plots import save_figure
from paucal.evaluation.seen_images import keys_with_seen_labels
from paucal.labeling import DenseTeacher, write_maps
from paucal.labeling.map_figure import draw_label_maps
from paucal.labeling.published_maps import MAX_CLASSES, find_maps, mean_over_positions, read_map, read_maps
from paucal.labeling.teacher import TeacherAccuracy, measure_teacher_accuracy
from paucal.models.named import find_named, open_named
from paucal.reading import expand_user_path
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, takes_frames
from paucal.runner.images import Advance, load_images
from paucal.runner.inference import check_batch_memory
from paucal.runner.outputs import check_new_file, refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.runs import RunFolder
from paucal.runs.lock import lock_folder, require_unlocked
from paucal.settings.options import check_ranges, check_size
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.label.settings import MIN_ACCURACY, LabelSettings
from paucal.wording import counted, percent

MAX_TESTED_IMAGES = 1000  # number of labelled images that the teacher is tested on
# Minimum accuracy of the mean prediction over an image's grid positions, relative to the accuracy for whole images.
MIN_RELATIVE_CELL_ACCURACY = 0.8
LOCK_NOUN = "the folder of label maps"  # name of the locked folder in messages


@dataclass(frozen=True)
class Teacher:
    """A classifier that predicts classes at each grid position of an image, and its preprocessing of images."""

    name: str
    dense: DenseTeacher
    classes: tuple[str, ...]
    transform: WholeImageTransform
    run: RunFolder | None  # run that trained the classifier; None for a timm model


@dataclass(frozen=True)
class Labeled:
    """The label maps of a set of images.

    Attributes:
        folder: Folder of the maps.
        images: Number of maps.
        facts: Properties that all maps have in common, such as the teacher, the classes and the grid size.
        check: Accuracy of the teacher on labelled images; None if the images have no labels. For published maps,
            `check.image_accuracy` is 0, since they have no prediction for the whole image.
        said: Lines that the command line prints.
    """

    folder: Path
    images: int
    facts: LabelMapMetadata
    check: TeacherAccuracy | None
    said: tuple[str, ...] = ()


@with_settings_signature(LabelSettings)
@takes_frames
def label(data: Data, **settings: Any) -> Labeled:
    """Make label maps, which are a trained classifier's predictions at every grid position of every image.

    The same as `paucal label`.

    Args:
        data: Folder of images, Parquet file, list file, name of a published set, or "digits".
        **settings: Any field of `paucal.verbs.label.settings.LabelSettings`; `output` and either `teacher` or
            `from_published` are required. Maps that already exist in `output` are kept.

    Returns:
        The folder of maps, for `paucal.train(..., labels=...)`, and properties of the maps.

    Raises:
        UserError: The teacher lacks a class of the images, its accuracy is too low, or the folder contains other files.
        TypeError: A setting does not exist.

    Example:
        >>> maps = paucal.label("photos/", teacher="runs/1", output="labels/")  # doctest: +SKIP
        >>> paucal.train("photos/", method="token-labeling", labels=maps.folder)  # doctest: +SKIP
    """
    label_settings = settings_from_keywords(LabelSettings, {**settings, "data": data}, "paucal.label", "label")
    console = RecordingConsole()
    return replace(label_set(label_settings, console), said=tuple(console.said))


def label_set(settings: LabelSettings, console: Console) -> Labeled:
    """Compute the maps of a set of images, or convert published maps, and print messages; see `label`."""
    check_ranges(settings)
    if settings.picture is not None and Path(settings.picture).suffix.lower() != ".png":
        raise UserError(f"--picture is {settings.picture!r}, but must end in .png: give another name.")
    if (settings.teacher is None) == (settings.from_published is None):
        raise UserError("give either --teacher or --from-published, with a folder of maps.")
    if settings.output is None:
        raise UserError("--output is missing: give a folder for the maps.")
    output, locations, root = expand_user_path(settings.output), {"DATA": settings.data}, settings.data_root
    refuse_inside_images(output, locations, root)
    check_folder_writable(output)
    require_unlocked(output, LOCK_NOUN)
    require_maps_or_empty(output)
    picture = None if settings.picture is None else check_new_file(settings.picture, locations, root, "--picture")
    with console.progress("reading images") as advance:
        images = load_images(settings, advance)
    for note in images.notes:
        console.say(f"note: {note}")
    if settings.teacher is None:
        names = None if settings.published_classes is None else read_class_list(settings.published_classes)
        folder = Path(str(settings.from_published)).expanduser()
        labeled = convert_published(images, folder, output, console, names, settings.min_accuracy)
    else:
        try:
            labeled = label_images(images, settings, output, console)
        except KeyboardInterrupt:
            console.say(f"the maps so far are in {output}: repeat the same call to continue.")
            raise
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        save_figure(picture, draw_label_maps(images, LabelMaps(output)))
        console.say(f"some of the maps are drawn in {picture}")
    return labeled


def label_images(images: ImageSet, settings: LabelSettings, output: Path, console: Console) -> Labeled:
    """Test the teacher on some of the images if they have labels, then write the teacher's map of every image."""
    teacher, batch_size = open_teacher(str(settings.teacher), settings.img_size, settings.device), settings.batch_size
    device = next(teacher.dense.parameters()).device
    check_batch_memory(min(batch_size, len(images)), teacher.dense.backbone.image_size)
    trained_keys = frozenset() if teacher.run is None else keys_with_seen_labels(teacher.run, images)
    check = None
    if images.has_single_labels:
        check = _test_teacher(images, teacher, trained_keys, device, batch_size)
        console.say(
            f"teacher: {teacher.name}; the teacher is correct for {percent(check.image_accuracy)} of "
            f"{counted(check.images, 'labelled image')}, the class with the highest mean in its map for "
            f"{percent(check.map_accuracy)}"
        )
        require_accuracy(check, settings.min_accuracy, console)
    else:
        console.say(f"teacher: {teacher.name}; the images have no labels, so its accuracy is unknown")
    facts = LabelMapMetadata(
        teacher.name,
        teacher.classes,
        teacher.dense.grid,
        min(settings.top_k, len(teacher.classes)),
        tuple(key for key in images.keys if key in trained_keys),
    )

    def write_missing(writer: MapWriter, advance: Advance) -> None:
        missing, on_gpu = writer.missing_positions, device.type == "cuda"
        loader = make_eval_loader(images, missing, teacher.transform, batch_size, settings.workers, pin_memory=on_gpu)
        write_maps(teacher.dense, writer, loader, facts.top, advance)  # type: ignore[arg-type]

    return _write_folder(images, Labeled(output, len(images), facts, check), "labeling", write_missing, console)


def open_teacher(name: str, image_size: Sequence[int] | None, device: str) -> Teacher:
    """Open a run, or a timm model with its published weights, as a teacher.

    `image_size` is the side or (height, width) of the model's input in pixels, by default as in training; a larger
    input gives finer maps.
    """
    check_size(image_size)
    model, run_or_name = open_named(name, device, image_size, "--teacher"), find_named(name)
    card, preprocessing = model.require_classifier().card, model.card.preprocessing
    if card.is_multi_label:
        raise UserError(
            f"--teacher: {name} predicts several labels per image, but label maps need a single label: train a teacher "
            "on images with one label each."
        )
    if preprocessing.channels != RGB:
        raise UserError(
            f"--teacher: {name} reads {counted(preprocessing.channels, 'channel')}, but label maps are made from RGB "
            "images: give another teacher."
        )
    run = run_or_name if isinstance(run_or_name, RunFolder) else None
    size, normalisation = preprocessing.image_size, preprocessing.normalisation
    transform = WholeImageTransform(size, normalisation, "bicubic" if run is None else preprocessing.interpolation)
    dense = DenseTeacher(model.module, size).to(model.device)
    return Teacher(name if run is None else str(run.path), dense, card.classes, transform, run)


def _write_folder(
    images: ImageSet,
    labeled: Labeled,
    title: str,
    write_missing: Callable[[MapWriter, Advance], None],
    console: Console,
) -> Labeled:
    """Lock the folder of the maps, write the missing maps with a progress bar, and print what the folder has."""
    facts, output = labeled.facts, labeled.folder
    with console.progress("looking at images") as advance:
        hashes = pixel_hashes(images, range(len(images)), advance)
    with lock_folder(output, LOCK_NOUN) as lock, console.progress(title) as advance:

        def step(done: int, total: int) -> None:
            lock.check()
            advance(done, total)

        write_missing(MapWriter(output, facts, images.keys, hashes), step)
    console.say(
        f"{counted(len(images), 'map')} of {facts.grid[0]}x{facts.grid[1]} grid positions with {facts.top} of "
        f"{len(facts.classes)} classes, {facts.bytes_per_image / 1024:.1f} KiB each, are in {output}"
    )
    return labeled


def _test_teacher(
    images: ImageSet, teacher: Teacher, trained_keys: Collection[str], device: torch.device, batch_size: int
) -> TeacherAccuracy:
    """Test a teacher on a sample of the images that it was not trained on; if it was trained on all, use all."""
    if unknown := [name for name in images.classes if name not in set(teacher.classes)]:
        raise UserError(
            f"--teacher: {teacher.name} does not know the class {unknown[0]!r} of {images.name}: train a teacher on "
            "these images, for instance with 'paucal train DATA --model resnet50 --init timm'."
        )
    reordered = images.with_classes(teacher.classes)
    unseen = [index for index, key in enumerate(images.keys) if key not in trained_keys]
    candidates = np.asarray(unseen or range(len(images)), dtype=np.int64)
    sample = candidates[_sample_positions(len(candidates))]
    return measure_teacher_accuracy(teacher.dense, reordered, sample, teacher.transform, device, batch_size)


def _sample_positions(count: int) -> NDArray[np.int64]:
    """Return at most `MAX_TESTED_IMAGES` positions, evenly spaced from 0 to `count - 1`."""
    return np.linspace(0, count - 1, min(MAX_TESTED_IMAGES, count)).round().astype(np.int64)


def require_accuracy(check: TeacherAccuracy, min_accuracy: float, console: Console) -> None:
    """Refuse maps less accurate than `min_accuracy`; print a note if whole images are classified far better."""
    if check.map_accuracy < min_accuracy:
        raise UserError(
            "the class with the highest mean in the teacher's map is correct for "
            f"{percent(check.map_accuracy)} of the images, below --min-accuracy {min_accuracy:g}, so the maps would be "
            "mostly wrong: train a better teacher, or lower --min-accuracy."
        )
    if check.map_accuracy < MIN_RELATIVE_CELL_ACCURACY * check.image_accuracy:
        console.say(
            "note: the maps are less accurate than the predictions for whole images; a teacher that classifies the "
            "mean of its feature map (a ResNet, ConvNeXt or Swin) gives better maps than one with a class token"
        )


def convert_published(
    images: ImageSet,
    folder: Path,
    output: Path,
    console: Console,
    classes: Sequence[str] | None = None,
    min_accuracy: float = MIN_ACCURACY,
) -> Labeled:
    """Convert published maps, one file per image in class folders, to a folder of label maps; existing maps are kept.

    The maps keep their raw logits; a class that is missing from a map has the logit zero. The maps cover the central
    square of each image, and the loss ignores the area outside this square. Images without a map are left out; all
    training images must have a map. `classes` are the names of the maps' classes in the order of their numbers, by
    default the classes of the set.
    """
    names = tuple(classes or images.classes)
    if not 2 <= len(names) <= MAX_CLASSES:
        raise UserError(f"published maps have 2 to {MAX_CLASSES} classes, but {len(names)} are named.")
    positions, files = find_maps(images, folder)
    labelled = images.select(positions)
    check = _check_published_maps(labelled, files, names) if labelled.has_single_labels else None
    if check is not None:
        console.say(
            f"maps: {folder}; the mean of a map is correct for {percent(check.map_accuracy)} of {check.images} "
            "labelled images"
        )
        require_accuracy(check, min_accuracy, console)
    shape = read_map(files[0], len(names))[0].shape
    facts = LabelMapMetadata(
        f"published maps in {folder.name}", names, (shape[1], shape[2]), shape[0], covered="square"
    )

    def write_missing(writer: MapWriter, advance: Advance) -> None:
        missing = writer.missing_positions
        for first, values, indices in read_maps([files[row] for row in missing], len(names), shape):
            writer.write(missing[first : first + len(values)].tolist(), values, indices)
            advance(len(writer) - len(missing) + first + len(values), len(writer))

    return _write_folder(labelled, Labeled(output, len(files), facts, check), "converting", write_missing, console)


def _check_published_maps(images: ImageSet, files: Sequence[Path], names: tuple[str, ...]) -> TeacherAccuracy:
    if unknown := sorted(set(images.classes) - set(names)):
        raise UserError(
            f"--published-classes: {images.name} has a class {unknown[0]!r} that is not among the {len(names)} names: "
            "name the maps' classes as the data does."
        )
    reordered, n_correct = images.with_classes(names), 0
    sample = _sample_positions(len(images))
    for position in sample:
        logits = mean_over_positions(*read_map(files[position], len(names)), len(names))
        n_correct += int(logits.argmax()) == reordered.labels[position]
    return TeacherAccuracy(len(sample), 0.0, n_correct / len(sample))
