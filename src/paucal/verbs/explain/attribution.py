"""`--show attribution`: maps of the image regions that support a class."""

from collections.abc import Sequence

import torch

from paucal.explain.attribution.methods import METHODS, attribute, best_method, methods_of
from paucal.explain.figures.attribution import AttributedImage
from paucal.explain.figures.pictures import readable_name
from paucal.explain.prepared import compute_logits, prepare_for_hooks
from paucal.explain.scores import resize_to_cells
from paucal.models.regression import RegressionCard
from paucal.models.trained import TrainedModel
from paucal.types import UserError
from paucal.verbs.explain.inputs import ExplainInput, stack_views
from paucal.wording import did_you_mean, join_first_few

MAX_CELLS = 56  # longest side of a drawn map in grid positions; larger maps are averaged to a coarser grid


def choose_method(model: TrainedModel, requested: str) -> tuple[str, str]:
    """Return the name of the method to use, and a line for the console with its title and, for "auto", the reason."""
    if requested == "auto":
        method, reason = best_method(model.module)
        return method, f"method: {METHODS[method].title}; auto: {reason}"
    if requested not in METHODS:
        suggestion = did_you_mean(requested, METHODS)
        raise UserError(f"--method is {requested!r}{suggestion}; expected auto or one of {', '.join(METHODS)}.")
    applicable = methods_of(model.module)
    if requested not in applicable:
        requirement = {"attention": "attention", "rules": "a ViT, DeiT, LV-ViT or DHVT"}[METHODS[requested].needs]
        raise UserError(
            f"--method {requested} needs {requirement}, which {model.card.backbone.name} lacks: use "
            f"{', '.join(applicable)}, or auto."
        )
    return requested, f"method: {METHODS[requested].title}"


def class_numbers(model: TrainedModel, names: Sequence[str] | None) -> list[int] | None:
    """Return the class numbers of the named classes; None to explain the most probable classes of each image."""
    if isinstance(model.card, RegressionCard) and names is None:
        return [0]
    model.require_classifier()
    if names is None:
        return None
    readable = [readable_name(name) for name in model.classes]
    return [_class_number(name, model.classes, readable) for name in names]


def _class_number(name: str, classes: Sequence[str], readable_names: Sequence[str]) -> int:
    if name in classes:
        return list(classes).index(name)
    pairs = enumerate(zip(readable_names, classes, strict=True))
    matches = [number for number, (readable, label) in pairs if readable.lower() == name.lower() and readable != label]
    if len(matches) > 1:
        candidates = " and ".join(classes[number] for number in matches)
        raise UserError(f"--explain-class: {name!r} may mean {candidates}: give one of these names.")
    if not matches:
        raise UserError(
            f"--explain-class: the model has no class {name!r}{did_you_mean(name, readable_names)}; it has "
            f"{join_first_few(readable_names, 10)}."
        )
    return matches[0]


def explain_batch(
    model: TrainedModel, batch: Sequence[ExplainInput], method: str, classes: list[int] | None, top: int
) -> list[AttributedImage]:
    """Return attribution maps for `classes`; by default, for the `top` most probable classes of each image."""
    images = stack_views(batch, model)
    with prepare_for_hooks(model.module) as module, torch.no_grad():
        outputs = model.card.probabilities(compute_logits(module, images.to(next(module.parameters()).dtype))).cpu()
    count = min(top, len(model.classes))
    if classes is None:
        explained = outputs.argsort(dim=1, descending=True, stable=True)[:, :count]
    else:
        explained = torch.tensor(classes).expand(len(batch), -1)
    columns = explained.T if METHODS[method].is_class_specific else explained.T[:1]
    maps = [attribute(model.module, images, column, method).float().cpu() for column in columns]
    # Maps at pixel resolution look like noise, so they are averaged to a coarser grid.
    maps = [resize_to_cells(values) if max(values.shape[1:]) > MAX_CELLS else values for values in maps]
    return [
        AttributedImage(
            image.name,
            image.picture,
            torch.stack([values[index] for values in maps]),
            tuple(readable_name(model.classes[number]) for number in explained[index].tolist()),
            tuple(outputs[index, explained[index]].tolist()),
            model.card.describe(float(outputs[index, 0])) if isinstance(model.card, RegressionCard) else "",
        )
        for index, image in enumerate(batch)
    ]
