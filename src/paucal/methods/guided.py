"""Extra losses that learn from a trained network: distillation from a teacher, and locality guidance by a small CNN."""

from typing import Any

from paucal.backbones.empty_models import supports_sizes
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.evaluation.seen_images import keys_with_seen_labels
from paucal.methods.contract import ExtraLoss, RunImages
from paucal.methods.training_settings import DistillationSettings, LocalitySettings
from paucal.models.card import ModelCard
from paucal.models.named import find_named, open_named
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import imagenet_classes, published_card
from paucal.models.trained import load_trained, read_card
from paucal.objectives import LocalityGuidance, Term
from paucal.objectives.guided import DISTILLATION_WEIGHT, GUIDANCE_WEIGHT, Distillation, GuidedTerm
from paucal.runs import RunFolder, open_model_folder
from paucal.settings.options import flag
from paucal.types import FeatureRequest, UserError
from paucal.wording import counted


def refuse_leaks(setting: str, run: RunFolder, run_images: RunImages) -> None:
    """Refuse a guide, named by `setting`, that was trained on held-out images of the run: their labels would leak."""
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


def _build_distillation(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
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
        DISTILLATION_WEIGHT if weight is None else weight,
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
    build=_build_distillation,
    adapt_to_run=_adapt_teacher_to_run,
)


def _build_locality_guidance(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
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
    rules={"guide_weight": lambda: (GUIDANCE_WEIGHT, "as in the published code")},
    paths=("guide",),
    advice="without --add locality: give --add locality, or remove {flag}",
    build=_build_locality_guidance,
    adapt_to_run=_adapt_guide_to_run,
)
