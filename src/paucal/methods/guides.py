"""Prepare the trained network that guides an extra loss: normalise its images, and check for leaked labels."""

from paucal.evaluation.seen_images import keys_with_seen_labels
from paucal.methods.contract import RunImages
from paucal.models.preprocessing import Preprocessing
from paucal.objectives.guided import GuidedTerm
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.types import UserError
from paucal.wording import counted


def refuse_leaks(setting: str, run: RunFolder, run_images: RunImages) -> None:
    """Raise a UserError if a guide was trained on validation or test images of the run, since their labels would leak.

    `setting` is the setting that names the guide, and `run` is the run that trained it.
    """
    leaked = keys_with_seen_labels(run, run_images.images).intersection(run_images.held_out)
    if leaked:
        raise UserError(
            f"{flag(setting)} {run.path} was trained on {len(leaked)} of the validation and test images of this "
            "run, so that network knows their labels: train that network with this run's --seed and split."
        )


def normalise_for_guide(setting: str, term: GuidedTerm, preprocessing: Preprocessing, run_images: RunImages) -> None:
    """Set how a term normalises the run's images for its guide: with the guide's own `preprocessing`."""
    statistics = run_images.statistics
    if len(statistics.mean) != preprocessing.channels:
        raise UserError(
            f"{flag(setting)} needs images with {counted(preprocessing.channels, 'channel')}, but the images of this "
            f"run have {len(statistics.mean)}: give another {flag(setting)}."
        )
    scale = [std / guide_std for std, guide_std in zip(statistics.std, preprocessing.std, strict=True)]
    triples = zip(statistics.mean, preprocessing.mean, preprocessing.std, strict=True)
    term.set_renormalisation(scale, [(mean - guide_mean) / guide_std for mean, guide_mean, guide_std in triples])
