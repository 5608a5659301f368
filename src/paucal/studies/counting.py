"""Parameters and multiply-adds of published models, counted on the meta device without computing anything."""

import warnings
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones import BackboneSpec
from paucal.backbones.cost import image_cost
from paucal.backbones.empty_models import build_empty
from paucal.backbones.probe import make_dummy_images
from paucal.backbones.sizing import fit_to_image_size
from paucal.recipes.detection import RECIPES
from paucal.rules.resolve import model_arguments
from paucal.studies.study import Column, Row, Study
from paucal.tasks.detection.cost import detector_cost
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.segmentation.cost import segmenter_cost


@dataclass(frozen=True)
class ModelCost:
    """The size of a model, and its multiply-adds for one image in billions (None if they cannot be counted)."""

    params: float  # parameters in millions, including frozen ones
    gmacs: float | None  # multiply-adds without the two matrix products in attention, as fvcore counts
    gmacs_all: float | None  # multiply-adds with these products


def counted_value(study: Study, row: Row, column: Column) -> float | None:
    """Return the cost of a row's published model that a column shows, such as its parameters; None if it is unknown."""
    if not row.model:
        return None
    classes = row.classes if row.classes is not None else column.classes
    model = study.models[row.model]
    model_args = (*model.full.args, *row.args)
    if model.network:
        cost = count_network(model.full.name, model_args, model.network, model.shape, model.width, classes)
    else:
        cost = count_model(model.full.name, model.side, model_args, 1000 if classes is None else classes)
    return getattr(cost, column.metric)


@lru_cache(maxsize=256)
def count_model(name: str, side: int, model_args: tuple[str, ...], classes: int) -> ModelCost:
    """Count the parameters and multiply-adds of a timm model for square images; 0 classes: no classifier."""
    keyword_args = model_arguments(model_args)
    # Of the fitted arguments, only the image size is used, since some models need this argument.
    fitted = fit_to_image_size(name, (side, side), keyword_args).arguments
    size = {key: value for key, value in fitted.items() if key == "img_size"}
    arguments = {**size, **keyword_args, "num_classes": classes}
    cost = image_cost(name, (side, side), arguments)
    model = build_empty(name, arguments).eval()
    params = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        images = make_dummy_images(model, (side, side)).requires_grad_()  # else the counter fails on some models
        try:
            with counter:
                model(images)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
            gmacs_all = None  # the counter fails on some other models
        else:
            gmacs_all = counter.get_total_flops() / 2e9  # two operations per multiply-add
    return ModelCost(params, None if cost is None else cost.macs / 1e9, gmacs_all)


@lru_cache(maxsize=64)
def count_network(
    name: str, model_args: tuple[str, ...], network: str, shape: tuple[int, ...], width: int, classes: int | None
) -> ModelCost:
    """Count the parameters and multiply-adds of a mask detector (with 1,000 proposals) or of a segmenter.

    See `Model` for the arguments; `name` and `model_args` describe the backbone. The segmenter's auxiliary head is
    counted too. If `classes` is None, a detector has the 80 classes of COCO, and a segmenter the 150 of ADE20K.
    """
    spec = BackboneSpec(name, 0, image_size=(shape[0], shape[1]), arguments=model_arguments(model_args))
    if network == "upernet":
        parts = segmenter_cost(spec, 150 if classes is None else classes, width)
    else:
        settings = DetectSettings(masks="on", **RECIPES[f"{network}-coco-1x"].settings)
        parts = detector_cost(spec, 80 if classes is None else classes, settings)
    parameters, macs = (sum(getattr(part, name) for part in parts.values()) for name in ("parameters", "macs"))
    return ModelCost(parameters / 1e6, macs / 1e9, None)
