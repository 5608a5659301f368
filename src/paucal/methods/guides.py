"""What extra losses with a trained network beside the run's have in common: how it sees images, what it may know."""

from paucal.evaluation.seen_images import keys_told
from paucal.methods.contract import Circumstances
from paucal.models.preprocessing import Preprocessing
from paucal.objectives.guided import GuidedTerm
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.types import UserError


def refuse_leaks(setting: str, run: RunFolder, circumstances: Circumstances) -> None:
    """Refuse a guide whose answers would tell labels of images that the run validates or tests with.

    Args:
        setting: Name of the setting that names the guide.
        run: The guide's run.
        circumstances: Images of the run that learns.

    Raises:
        UserError: The guide was trained on some of these images.
    """
    known = keys_told(run, circumstances.images).intersection(circumstances.held_out)
    if known:
        raise UserError(
            f"{flag(setting)} {run.path} was trained on {len(known)} of the images that this run keeps for "
            "validation and test, whose labels it knows: train it with this run's --seed and split."
        )


def show_as_trained(setting: str, term: GuidedTerm, own: Preprocessing, circumstances: Circumstances) -> None:
    """Let a guide see the run's images normalised as in its own training.

    Raises:
        UserError: The guide reads other channels than the run.
    """
    statistics = circumstances.statistics
    if len(statistics.mean) != own.channels:
        raise UserError(
            f"{flag(setting)} reads images of {own.channels} channels, and those of this run have "
            f"{len(statistics.mean)}: give another one."
        )
    scale = [std / its for std, its in zip(statistics.std, own.std, strict=True)]
    pairs = zip(statistics.mean, own.mean, own.std, strict=True)
    term.see_as(scale, [(mean - its) / deviation for mean, its, deviation in pairs])
