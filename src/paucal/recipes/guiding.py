"""The small CNN that guides a run: opened from its folder, and held to what it may know."""

from collections.abc import Iterable

from paucal.backbones.features import FeatureBackbone
from paucal.data.normalisation import Normalisation
from paucal.evaluation.deployed import load_deployed
from paucal.objectives import Term
from paucal.objectives.locality_guidance import WEIGHT, LocalityGuidance
from paucal.recipes.labeling import trained_on
from paucal.recipes.prepare import Prepared
from paucal.recipes.settings import TrainSettings
from paucal.runs import open_run
from paucal.types import FeatureRequest, UserError


def guidance(settings: TrainSettings, backbone: FeatureBackbone) -> Term:
    """Return the loss of locality guidance by the run that `--guide` names.

    Raises:
        UserError: there is no such run, or the backbone has no blocks to lead.
    """
    if settings.guide is None:
        raise UserError(
            "--add locality needs a guide: train a small CNN on the same images and give its run as --guide."
        )
    deployed = load_deployed(settings.guide)
    guide = FeatureBackbone(deployed.module, deployed.card.preprocessing.image_size)
    dims = [dim for dim, _, _ in backbone.shapes(FeatureRequest("blocks"))]
    try:
        return LocalityGuidance(guide, dims, WEIGHT if settings.guide_weight is None else settings.guide_weight)
    except ValueError as problem:
        raise UserError(f"--guide {settings.guide}: {problem}; give a backbone with more blocks.") from problem


def settle_guide(
    settings: TrainSettings, terms: Iterable[object], prepared: Prepared, statistics: Normalisation
) -> None:
    """Let the guide see images as it was trained to, once the run's own normalisation is known.

    Raises:
        UserError: the guide was trained on images that this run validates or tests with, whose labels would leak.
    """
    for term in terms:
        if not isinstance(term, LocalityGuidance) or settings.guide is None:
            continue
        run = open_run(settings.guide)
        seen, images = set(trained_on(run)), prepared.images
        held_out = [i for part in ("val", "test") for i in prepared.part(part) if images.keys[i] in seen]
        if held_out:
            raise UserError(
                f"--guide {settings.guide} was trained on {len(held_out)} of the images that this run keeps for "
                "validation and test, whose labels it knows: train it with this run's --seed and split."
            )
        own = load_deployed(run).card.preprocessing
        channels = list(zip(statistics.mean, statistics.std, own.mean, own.std, strict=True))
        scale = [std / guides_std for _, std, _, guides_std in channels]
        shift = [(mean - guides_mean) / guides_std for mean, _, guides_mean, guides_std in channels]
        term.see_as(scale, shift)
