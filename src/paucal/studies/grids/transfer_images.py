"""Images with boxes or masks before anything is trained on them: how many they are, which, and how long a run takes."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paucal.data.images import spread
from paucal.runner.console import Console
from paucal.runner.job import AnyJob
from paucal.runner.time_budget import TimedJob
from paucal.studies.images import count_training
from paucal.tasks.detection.annotations import BoxedImages
from paucal.tasks.segmentation.images import Segmented
from paucal.verbs.compare.fingerprint import MOST_READ, fingerprint


@dataclass(frozen=True)
class Marked:
    """Images with boxes or masks.

    Attributes:
        training: images of the train part, or all where no part is declared.
        fingerprint: of the images, and of their boxes or masks.
    """

    training: int
    fingerprint: str


def open_marked(kind: str, data: str, console: Console) -> Marked:
    """Open images with boxes (kind "detect") or masks ("segment").

    Raises:
        UserError: they are not there, or do not do.
    """
    if kind == "detect":
        from paucal.tasks.detection.opening import open_boxed

        boxed = open_boxed(data)
        return Marked(count_training(boxed.images), _digest(fingerprint(boxed.images), _boxes(boxed)))
    from paucal.tasks.segmentation.images import open_segmented
    from paucal.tasks.segmentation.settings import SegmentSettings

    segmented = open_segmented(SegmentSettings(data=data), console.progress, None)
    return Marked(count_training(segmented.images), _digest(fingerprint(segmented.images), _masks(segmented)))


def seconds_of(job: AnyJob, values: Mapping[str, Any], console: Console) -> float:
    """Put a run together, and return how long it takes by timing a few of its steps and answers.

    Raises:
        UserError: a setting does not do.
    """
    settings, origin = job.check(job.kind(**values), dict.fromkeys(values, "given"))
    made = job.assemble(job.pin(settings), origin, console.progress)
    assert isinstance(job, TimedJob)
    return job.seconds_of_run(made)


def _digest(images: str, parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(images.encode(), digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _boxes(boxed: BoxedImages) -> Iterator[bytes]:
    for index in range(len(boxed.images)):
        one = boxed.of(index)
        yield from (one.corners.tobytes(), one.labels.tobytes(), one.crowd.tobytes())
        yield from (bytes(mask["counts"]) for mask in one.masks or ())


def _masks(segmented: Segmented) -> Iterator[bytes]:
    """Return the classes of the pixels of up to 2000 images, and for all of them how many pixels each class has."""
    assert segmented.masked is not None
    yield segmented.masked.pixels.tobytes()
    yield from (segmented.masks.read(int(index)).tobytes() for index in spread(len(segmented.images), MOST_READ))
