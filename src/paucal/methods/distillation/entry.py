"""Distillation: the extra loss that learns from a teacher, a run or a timm model with published weights."""

from typing import Any

from paucal.backbones.empty_models import supports_sizes
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.methods.contract import ExtraLoss, RunImages
from paucal.methods.distillation.settings import DistillationSettings
from paucal.methods.guides import normalise_for_guide, refuse_leaks
from paucal.models.card import ModelCard
from paucal.models.named import find_named, open_named
from paucal.models.published import imagenet_classes, published_card
from paucal.models.saved import read_card
from paucal.objectives.base import Term
from paucal.objectives.distillation import WEIGHT, Distillation
from paucal.runs import RunFolder
from paucal.types import UserError


def _teacher_card(name: str) -> ModelCard:
    """Return the model card of a teacher, which is a run or a timm model with published weights."""
    run_or_name = find_named(name, "--teacher")
    if not isinstance(run_or_name, RunFolder):
        if imagenet_classes(run_or_name) is None:
            raise UserError(f"--teacher {name} has no published weights for ImageNet classes: give a run.")
        return published_card(run_or_name)
    card = read_card(run_or_name)
    if card.is_multi_label or not card.classes:
        raise UserError(f"--teacher {name} does not predict one class per image: give a classifier with one label.")
    return card


def _build_term(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    if settings.teacher is None:
        raise UserError("--add distillation needs a teacher: give a run or a timm model as --teacher.")
    card, weight = _teacher_card(settings.teacher), settings.distillation_weight
    set_distilled_training = getattr(backbone.model, "set_distilled_training", None)
    if callable(set_distilled_training):
        set_distilled_training(True)  # return the logits of class token and distillation token separately
    teacher_spec = card.backbone
    arguments = {
        **teacher_spec.arguments,
        **fit_to_image_size(teacher_spec.name, teacher_spec.image_size, teacher_spec.arguments).arguments,
    }
    takes_run_size = supports_sizes(teacher_spec.name, [teacher_spec.image_size, spec.image_size], arguments)
    return Distillation(
        open_named(settings.teacher).module,
        spec.num_classes,
        WEIGHT if weight is None else weight,
        None if takes_run_size else teacher_spec.image_size,
        settings.distillation_targets == "probabilities",
        card.temperature,
        spec.in_chans,
    )


def _adapt_teacher_to_run(settings: Any, term: Distillation, run_images: RunImages) -> None:
    """Normalise images for the teacher as in the teacher's training; reorder its outputs to the classes of the run."""
    card, images = _teacher_card(settings.teacher), run_images.images
    if images.multi_hot is not None:
        raise UserError(
            "--add distillation learns one class per image, but these images have several labels: remove --add "
            "distillation."
        )
    unknown = [name for name in images.classes if name not in card.classes]
    if unknown:
        raise UserError(
            f"--teacher {settings.teacher} does not know the class {unknown[0]!r} of {images.name}: give a teacher for "
            "these classes, such as a run on these images."
        )
    if isinstance(run_or_name := find_named(settings.teacher), RunFolder):
        refuse_leaks("teacher", run_or_name, run_images)
    normalise_for_guide("teacher", term, card.preprocessing, run_images)
    term.set_teacher_columns([card.classes.index(name) for name in images.classes])


DISTILLATION_LOSS = ExtraLoss(
    name="distillation",
    settings=DistillationSettings,
    paths=("teacher",),
    advice="without --add distillation: give --add distillation, or remove {flag}",
    build=_build_term,
    adapt_to_run=_adapt_teacher_to_run,
)
