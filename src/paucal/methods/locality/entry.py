"""Locality guidance: the small CNN that guides a run, opened from its folder and held to what it may know."""

from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import Circumstances, ExtraLoss
from paucal.methods.guides import refuse_leaks, show_as_trained
from paucal.methods.locality.settings import LocalitySettings
from paucal.models.saved import read_card
from paucal.models.trained import load_trained
from paucal.objectives import LocalityGuidance, Term
from paucal.objectives.locality_guidance import WEIGHT
from paucal.runs import open_model
from paucal.types import FeatureRequest, UserError


def _build(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    if settings.guide is None:
        raise UserError(
            "--add locality needs a guide: train a small CNN on the same images and give its run as --guide."
        )
    trained = load_trained(settings.guide)
    guide = FeatureBackbone(trained.module, trained.card.preprocessing.image_size)
    dims = [dim for dim, _, _ in backbone.shapes(FeatureRequest("blocks"))]
    try:
        return LocalityGuidance(guide, dims, WEIGHT if settings.guide_weight is None else settings.guide_weight)
    except ValueError as problem:
        raise UserError(f"--guide {settings.guide}: {problem}; give a backbone with more blocks.") from problem


def _settle(settings: Any, term: LocalityGuidance, circumstances: Circumstances) -> None:
    """Let the guide see images as it was trained to, once the run's own normalisation is known.

    Raises:
        UserError: the guide was trained on images that this run validates or tests with, whose labels would leak.
    """
    run = open_model(settings.guide)
    refuse_leaks("guide", run, circumstances)
    show_as_trained("guide", term, read_card(run).preprocessing, circumstances)


TERM = ExtraLoss(
    name="locality",
    summary="the cells of the blocks imitate those of a small CNN, --guide",
    settings=LocalitySettings,
    paths=("guide",),
    advice="without --add locality: add it, or leave {flag} out",
    build=_build,
    settle=_settle,
)
