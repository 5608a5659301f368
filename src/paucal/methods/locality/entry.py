"""Locality guidance: the small CNN that guides a run, with checks for leaked labels."""

from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import ExtraLoss, RunImages
from paucal.methods.guides import normalise_for_guide, refuse_leaks
from paucal.methods.locality.settings import LocalitySettings
from paucal.models.saved import read_card
from paucal.models.trained import load_trained
from paucal.objectives import LocalityGuidance, Term
from paucal.objectives.locality_guidance import WEIGHT
from paucal.rules.resolve import Choice, rules_by_name
from paucal.runs import open_model_folder
from paucal.types import FeatureRequest, UserError


def guide_weight() -> Choice:
    """Choose the loss weight of the published code."""
    return WEIGHT, "as in the published code"


def _build_term(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    if settings.guide is None:
        raise UserError(
            "--add locality needs a guide: train a small CNN on the same images, and give the CNN's run as --guide."
        )
    trained = load_trained(settings.guide)
    guide = FeatureBackbone(trained.module, trained.card.preprocessing.image_size)
    dims = [dim for dim, _, _ in backbone.shapes(FeatureRequest("blocks"))]
    try:
        return LocalityGuidance(guide, dims, settings.guide_weight, spec.in_chans)
    except ValueError as problem:
        raise UserError(f"--guide {settings.guide}: {problem}; give a backbone with more blocks.") from problem


def _adapt_guide_to_run(settings: Any, term: LocalityGuidance, run_images: RunImages) -> None:
    """Refuse leaked labels, and normalise images for the guide as in the guide's training."""
    run = open_model_folder(settings.guide)
    refuse_leaks("guide", run, run_images)
    normalise_for_guide("guide", term, read_card(run).preprocessing, run_images)


LOCALITY_LOSS = ExtraLoss(
    name="locality",
    settings=LocalitySettings,
    rules=rules_by_name((guide_weight,)),
    paths=("guide",),
    advice="without --add locality: give --add locality, or remove {flag}",
    build=_build_term,
    adapt_to_run=_adapt_guide_to_run,
)
