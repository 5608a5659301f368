"""Hard distillation: the teacher of a run, and its classes in the order of the run's."""

from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn

from paucal.backbones.empty_models import takes_sizes
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.backbones.weights.inputs import input_of_timm
from paucal.evaluation.deployed import Card, Preprocessing, load_deployed
from paucal.methods.contract import ExtraLoss, RunImages
from paucal.methods.distillation.settings import DistillationSettings
from paucal.methods.guides import refuse_leaks, show_as_trained
from paucal.objectives.base import Term
from paucal.objectives.distillation import WEIGHT, Distillation
from paucal.runs import open_model
from paucal.types import UserError, height_and_width


def _card(name: str) -> Card:
    """Describe a teacher: a run, or a timm model with its published weights.

    Raises:
        UserError: There is no such teacher, or it does not name one class for an image.
    """
    if not Path(name).expanduser().exists():
        return _published(name)
    folder = open_model(name)
    card = Card.from_dict(folder.read_json(folder.card.name))
    if card.several or not card.classes:
        raise UserError(f"--teacher {name} does not name one class for an image: give a classifier that does.")
    return card


def _published(name: str) -> Card:
    if not timm.is_model(name):
        raise UserError(f"--teacher is {name!r}, neither a run folder nor a timm model: give one, such as runs/1.")
    config = timm.get_pretrained_cfg(name)
    subset = None if config is None else infer_imagenet_subset(config.to_dict())
    if config is None or not config.has_weights or subset is None:
        raise UserError(f"--teacher {name} has no published weights for classes of ImageNet: give a run.")
    spec = BackboneSpec(name, config.num_classes, image_size=height_and_width(config.input_size[1:]), pretrained=True)
    fed = input_of_timm(name)
    preprocessing = Preprocessing(spec.image_size, fed.crop_ratio, fed.interpolation, fed.mean, fed.std)
    return Card(spec, tuple(ImageNetInfo(subset).label_names()), preprocessing)


def _network(name: str, card: Card) -> nn.Module:
    if not card.backbone.pretrained:
        return load_deployed(name).module
    with torch.random.fork_rng(devices=[]):
        return card.backbone.build().model


def _build(settings: Any, spec: BackboneSpec, backbone: FeatureBackbone) -> Term:
    if settings.teacher is None:
        raise UserError("--add distillation needs a teacher: give a run or a timm model as --teacher.")
    card, weight = _card(settings.teacher), settings.distillation_weight
    answer_apart = getattr(backbone.model, "set_distilled_training", None)
    if callable(answer_apart):
        answer_apart(True)  # the class token and the distillation token
    own = card.backbone
    arguments = {**own.arguments, **fit_to_image_size(own.name, own.image_size, own.arguments).arguments}
    fits = takes_sizes(own.name, [own.image_size, spec.image_size], arguments)
    return Distillation(
        _network(settings.teacher, card),
        spec.num_classes,
        WEIGHT if weight is None else weight,
        None if fits else own.image_size,
    )


def _settle(settings: Any, term: Distillation, run_images: RunImages) -> None:
    """Give the teacher its own normalisation, and order its classes as those of the run.

    Raises:
        UserError: The teacher lacks a class, or knows labels of images that this run validates or tests with.
    """
    card, images = _card(settings.teacher), run_images.images
    if images.multi_hot is not None:
        raise UserError(
            "--add distillation learns one class for each image, and these images have several labels: leave it out."
        )
    unknown = [name for name in images.classes if name not in card.classes]
    if unknown:
        raise UserError(
            f"--teacher {settings.teacher} does not know the class {unknown[0]!r} of {images.name}: give a teacher for "
            "these classes, such as a run on these images."
        )
    if not card.backbone.pretrained:
        refuse_leaks("teacher", open_model(settings.teacher), run_images)
    show_as_trained("teacher", term, card.preprocessing, run_images)
    term.answer_in([card.classes.index(name) for name in images.classes])


TERM = ExtraLoss(
    name="distillation",
    summary="the class that a teacher names for the same view, --teacher",
    settings=DistillationSettings,
    paths=("teacher",),
    advice="without --add distillation: add it, or leave {flag} out",
    build=_build,
    settle=_settle,
)
