"""A figure of the most confident mistakes with their attribution maps, for the report page of a run."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.evaluation.plots import Mistake, save_figure, worst_mistakes
from paucal.evaluation.predictions import Predictions
from paucal.explain.attribution.methods import CAPTUM_METHODS, METHODS, attribute, ranked_methods
from paucal.explain.figures.attribution import AttributedImage, mistakes_attribution_figure
from paucal.explain.figures.pictures import readable_name, visible_region
from paucal.models.trained import TrainedModel
from paucal.types import UserError

MAX_MISTAKES = 8  # maximum number of images in the figure
FILE_NAME = "mistakes_attribution.png"


def draw_mistakes(
    folder: Path, predictions: Predictions, images: ImageSet, model: TrainedModel, say: Callable[[str], None]
) -> None:
    """Draw up to 8 of the most confident mistakes with attribution maps of the predicted class and of the label.

    Errors are not raised but printed with `say`, since the run has finished and its scores matter more.
    """
    path = folder / FILE_NAME
    try:
        mistakes = worst_mistakes(predictions, MAX_MISTAKES)
        figure = _draw_figure(mistakes, predictions, images, model) if mistakes else None
        if figure is not None:
            save_figure(path, figure)
            return
    except Exception as problem:  # an optional figure must not fail the run
        reason = str(problem).split("\n")[0].rstrip(".") or type(problem).__name__
        say(f"note: attribution maps of the mistakes are not drawn ({reason}).")
    with suppress(OSError):
        path.unlink(missing_ok=True)  # a figure of an earlier model must not remain


def _draw_figure(mistakes: list[Mistake], predictions: Predictions, images: ImageSet, model: TrainedModel) -> Figure:
    transform, size = model.card.preprocessing.transform(), model.card.preprocessing.image_size
    mistaken_images = [images.store.read(mistake.id) for mistake in mistakes]
    inputs = [transform(image) for image in mistaken_images]
    batch = torch.stack([view for view, _ in inputs]).to(model.device)
    row_of = {int(image_id): row for row, image_id in enumerate(predictions.ids.tolist())}
    probabilities = predictions.probabilities[[row_of[mistake.id] for mistake in mistakes]]
    targets = [torch.tensor([getattr(mistake, field) for mistake in mistakes]) for field in ("predicted", "true")]
    method, maps = _attribution_maps(model, batch, targets)
    explained = [
        AttributedImage(
            f"label: {readable_name(model.classes[mistake.true])}",
            visible_region(mistaken_images[row], inputs[row][1], size),
            torch.stack([class_maps[row] for class_maps in maps]),
            (readable_name(model.classes[mistake.predicted]), readable_name(model.classes[mistake.true])),
            (float(probabilities[row, mistake.predicted]), float(probabilities[row, mistake.true])),
        )
        for row, mistake in enumerate(mistakes)
    ]
    return mistakes_attribution_figure(explained, METHODS[method].title)


def _attribution_maps(model: TrainedModel, batch: Tensor, targets: list[Tensor]) -> tuple[str, list[Tensor]]:
    """Return the name of the best method that supports the model, and (N, H, W) maps for each tensor of N classes."""
    problem = None
    for method in ranked_methods(model.module):
        if method in CAPTUM_METHODS:  # needs an optional package, and is slower
            continue
        try:
            return method, [attribute(model.module, batch, classes, method).float().cpu() for classes in targets]
        except UserError as error:  # for example, the blocks have no grid of tokens
            problem = problem or error
    raise problem or UserError(f"no attribution method supports {model.card.backbone.name}.")
