"""Images of shards are not decoded before a run: there are too many. A sample is tried, the rest when it is read."""

from dataclasses import replace

from paucal.data.decode import Reading
from paucal.data.decoded.read_as import ReadAs
from paucal.data.images import ImageSet
from paucal.data.verify import OnBad, ReportProgress, for_each, verify_images
from paucal.types import UserError
from paucal.wording import counted

TRIED = 256  # images


def stream_images(
    image_set: ImageSet,
    reading: Reading,
    on_bad: OnBad,
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Return a set of shards as a run reads it; an image that cannot be read ends the run when its turn comes.

    To leave such images out they must be known beforehand, so that every process shows the same images in the same
    steps: with "skip" every image is tried once.

    Args:
        image_set: with a stream.
        reading: how images are handed over.
        on_bad: what to do with unreadable images.
        workers: threads; None for one per processor core.
        progress: called with (images done, images in all).

    Returns:
        The set, and the keys of the images left out.

    Raises:
        UserError: one of 256 images spread over the set cannot be read, or with "skip" none can.
    """
    seen = replace(image_set, store=ReadAs(image_set.store, reading), reading=reading)
    if on_bad == "skip":
        return verify_images(seen, on_bad, workers, progress)
    tried = seen.sample(TRIED)
    bad = for_each(len(tried), lambda row: seen.store.check(int(tried[row])), workers, progress)
    if bad:
        key = image_set.keys[int(tried[min(bad)])]
        raise UserError(
            f"{len(bad)} of {counted(len(tried), 'image')} that were tried cannot be read ({key}); {bad[min(bad)]}; "
            "make the shards again, or leave such images out with --on-bad-image skip, which tries all of them first"
        )
    return seen, []
