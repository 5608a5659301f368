"""Functions that depend on the command of a run: the job of the run, its images, and its expected duration."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from paucal.data.checking.survey import digest_of
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.stores import EncodedStore, locate
from paucal.runner.console import Console
from paucal.runner.images import open_undecoded
from paucal.runner.job import AnyJob, RunSetup
from paucal.runner.time_budget import TimedJob, parse_duration, seconds_per_step
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.tuning import TIMED_STEPS, measure_seconds_per_image
from paucal.tasks.table import job_of
from paucal.training.timed_steps import timed_steps
from paucal.verbs.compare.grid import EVAL, verb_settings
from paucal.verbs.eval.images import open_image_set
from paucal.verbs.eval.settings import OpeningSettings

# Largest number of images whose bytes are hashed; for all images, the name, class, split and file size are hashed.
MAX_HASHED_IMAGES = 2000
OVERHEAD_SECONDS = 4.0  # time that a classification run needs to open images, draw figures and write the report
# Time that a pre-training run needs to open images, draw figures, write the report and evaluate the features.
PRETRAINING_OVERHEAD_SECONDS = 20.0


@dataclass(frozen=True)
class GridImages:
    """The images of a comparison with their labels and declared splits; the images are not decoded yet."""

    verb: str
    images: ImageSet
    annotations: Callable[[], Iterable[bytes]] | None = None  # yields boxes or masks as bytes; None for other labels

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_training_images(self) -> int:
        """Number of images of the train split, or of all images if no split is declared."""
        return self.images.declared_splits.count("train") or len(self.images)

    def fingerprint(self) -> str:
        """Return a digest of the images and their boxes or masks; see the function `fingerprint`."""
        if self.annotations is None:
            return fingerprint(self.images)
        digest = hashlib.blake2b(fingerprint(self.images).encode(), digest_size=12)
        for part in self.annotations():
            digest.update(part)
        return digest.hexdigest()


def open_images(verb: str, settings: Mapping[str, Any], console: Console) -> GridImages:
    """Open the images that the runs of a grid read."""
    if verb == EVAL:
        location = {name: settings[name] for name in ("data", "data_root", "download") if name in settings}
        return GridImages(verb, open_image_set(OpeningSettings(**location)))
    if verb == "detect":
        from paucal.tasks.detection.images import open_boxed_images

        boxed = open_boxed_images(settings["data"])

        def boxes() -> Iterator[bytes]:
            for index in range(len(boxed.images)):
                image_boxes = boxed.boxes_of(index)
                yield from (image_boxes.corners.tobytes(), image_boxes.labels.tobytes(), image_boxes.crowd.tobytes())
                yield from (bytes(mask["counts"]) for mask in image_boxes.masks or ())

        return GridImages(verb, boxed.images, boxes)
    if verb == "segment":
        from paucal.tasks.segmentation.images import open_segmentation_data
        from paucal.tasks.segmentation.settings import SegmentSettings

        segmented = open_segmentation_data(SegmentSettings(data=settings["data"]), console.progress, None)

        def masks() -> Iterator[bytes]:
            yield segmented.masked.class_pixel_counts.tobytes()  # pixels of each class in every image
            sampled = evenly_spaced(len(segmented.images), MAX_HASHED_IMAGES).tolist()
            yield from (segmented.masks.read(index).tobytes() for index in sampled)

        return GridImages(verb, segmented.images, masks)
    job_settings = job_of(verb).settings_type(**verb_settings(settings))
    return GridImages(verb, open_undecoded(job_settings, labelled=verb == "train"))


def fingerprint(images: ImageSet) -> str:
    """Return a digest of the names, classes, splits and file sizes of all images and the bytes of up to 2000 images.

    Copies of a data set in different folders have the same digest.
    """
    digest = hashlib.blake2b(repr(images.classes).encode(), digest_size=12)
    for key, label, part in zip(images.keys, images.labels.tolist(), images.declared_splits, strict=True):
        digest.update(f"{key!r} {label} {part}\n".encode())
    for index in range(len(images)):
        store, position = locate(images.store, index)
        # The size of the image file is included if the store has the size without reading the file.
        stamp = store.stamp(position) if isinstance(store, EncodedStore) else None
        digest.update(b"-" if stamp is None else str(stamp.size).encode())
    for index in evenly_spaced(len(images), MAX_HASHED_IMAGES).tolist():
        try:
            digest.update(digest_of(images.store, index))
        except UnreadableImage:
            digest.update(b"unreadable")
    return digest.hexdigest()


def seconds_of_run(job: AnyJob, setup: RunSetup[Any]) -> float:
    """Return the expected seconds of a run on this machine: its time budget, or an estimate from a few timed steps."""
    settings = setup.settings
    if isinstance(setup, TrainingSetup):
        if settings.epochs is None:
            assert settings.time is not None  # without a number of epochs, there is a time budget
            return parse_duration(settings.time, "--time")
        counts, image = setup.data.counts(), measure_seconds_per_image(setup)
        images = settings.epochs * (counts["train"] + counts["val"] / 3) + counts["test"] / 3
        return OVERHEAD_SECONDS + image * images
    if isinstance(job, TimedJob):
        return job.seconds_of_run(setup)
    plan = replace(setup.plan, total_steps=TIMED_STEPS + 1)
    loader_setup = replace(setup, settings=replace(settings, workers=0), plan=plan)
    device = torch.device(settings.device)
    with timed_steps(setup.objective.train(), device):
        step = seconds_per_step(setup.objective, job.loader(loader_setup, 0), device, settings.precision)
    return PRETRAINING_OVERHEAD_SECONDS + step * setup.plan.total_steps * settings.accumulate
