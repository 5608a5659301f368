"""Decoding of all images before a run, so that a damaged file is reported at the start and not during training."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from paucal.cores import count_usable_cores
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.types import UserError
from paucal.wording import join_first_few

OnBad = Literal["refuse", "skip"]  # raise a UserError if an image is unreadable, or leave unreadable images out
ReportProgress = Callable[[int, int], None]  # called with (images done, total images) from the calling thread

_CHUNK_IMAGES = 64  # images per task of a thread; small, so that the displayed progress is smooth
_MAX_THREADS = 16  # largest number of threads
_MAX_NAMES_SHOWN = 3  # largest number of images that a message names


def verify_images(
    image_set: ImageSet, on_bad: OnBad = "refuse", progress: ReportProgress | None = None
) -> tuple[ImageSet, list[str]]:
    """Decode every image once; return the set without unreadable images, and their keys, or refuse them."""
    problems = process_images(len(image_set), image_set.store.check, progress)
    return drop_unreadable(image_set, problems, on_bad)


def process_images(
    count: int, process: Callable[[int], None], progress: ReportProgress | None = None
) -> dict[int, str]:
    """Call `process` in threads with each image position below `count`; return the errors of unreadable images."""
    starts = range(0, count, _CHUNK_IMAGES)
    problems: dict[int, str] = {}

    def process_chunk(start: int) -> dict[int, str]:
        messages = {}
        for position in range(start, min(start + _CHUNK_IMAGES, count)):
            try:
                process(position)
            except UnreadableImage as error:
                messages[position] = str(error)
        return messages

    pool = ThreadPoolExecutor(min(_MAX_THREADS, count_usable_cores()))
    try:
        chunks = pool.map(process_chunk, starts)
        for start, messages in zip(starts, chunks, strict=True):
            problems.update(messages)
            if progress is not None:
                progress(min(start + _CHUNK_IMAGES, count), count)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, do not start further chunks
    return problems


def drop_unreadable(image_set: ImageSet, problems: dict[int, str], on_bad: OnBad) -> tuple[ImageSet, list[str]]:
    """Return the set without unreadable images (messages by position in `problems`) and their keys, or refuse them."""
    if not problems:
        return image_set, []
    names = [image_set.keys[i] for i in sorted(problems)]
    examples = join_first_few(names, _MAX_NAMES_SHOWN)
    subject = f"{len(names)} of {len(image_set)} images cannot be read ({examples})"
    if len(names) == len(image_set):
        raise UserError(f"{subject}; {problems[min(problems)]}; check the files in {image_set.location}.")
    if on_bad == "refuse":
        raise UserError(
            f"{subject}; {problems[min(problems)]}; repair or remove these images, or leave them out with "
            "--on-bad-image skip."
        )
    readable = np.asarray([i for i in range(len(image_set)) if i not in problems], dtype=np.int64)
    return image_set.select(readable, f"{subject}; they were left out"), names
