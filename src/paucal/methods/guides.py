"""The common part of extra losses with a second trained network: its normalisation, and leaked labels."""

from paucal.evaluation.seen_images import keys_with_seen_labels
from paucal.methods.contract import RunImages
from paucal.models.preprocessing import Preprocessing
from paucal.objectives.guided import GuidedTerm
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.wording import counted


def refuse_leaks(setting: str, run: RunFolder, run_images: RunImages) -> None:
    """Refuse a guide that was trained on validation or test images of the run, whose labels would leak."""
    leaked = keys_with_seen_labels(run, run_images.images).intersection(run_images.held_out)
    if leaked:
        raise UserError(
            f"{flag(setting)} {run.path} was trained on {len(leaked)} of the validation and test images of this "
            "run, so it knows their labels: train it with this run's --seed and split."
        )


def show_as_trained(setting: str, term: GuidedTerm, own: Preprocessing, run_images: RunImages) -> None:
    """Normalise the images for a guide as in its own training."""
    statistics = run_images.statistics
    if len(statistics.mean) != own.channels:
        raise UserError(
            f"{flag(setting)} needs images with {counted(own.channels, 'channel')}, but those of this run have "
            f"{len(statistics.mean)}: give another one."
        )
    scale = [std / its for std, its in zip(statistics.std, own.std, strict=True)]
    pairs = zip(statistics.mean, own.mean, own.std, strict=True)
    term.see_as(scale, [(mean - its) / deviation for mean, its, deviation in pairs])
