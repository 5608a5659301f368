"""The most confident mistakes with what the model saw in them, for the report of a run."""

from pathlib import Path

import torch

from paucal.data.images import ImageSet
from paucal.evaluation.deployed import Deployed
from paucal.evaluation.mistakes import worst_mistakes
from paucal.evaluation.predictions import Predictions
from paucal.evaluation.record import save_figure
from paucal.explain.attribution.choice import OF_CAPTUM, best_method
from paucal.explain.attribution.methods import METHODS, attribute
from paucal.explain.figures.attribution import Explained
from paucal.explain.figures.mistakes import mistakes_attribution_figure
from paucal.explain.figures.pictures import seen
from paucal.types import UserError

SHOWN = 8
NAME = "mistakes_attribution.png"


def draw_mistakes(folder: Path, predictions: Predictions, images: ImageSet, model: Deployed) -> None:
    """Draw up to 8 of the most confident mistakes with the attribution of the answer and of the label.

    A model that no method can explain leaves no picture; neither does one without mistakes.

    Args:
        folder: of the pictures.
        predictions: of images of the set; their ids are positions in it.
        images: the set.
        model: that answered.
    """
    mistakes = worst_mistakes(predictions, SHOWN)
    (folder / NAME).unlink(missing_ok=True)
    if not mistakes:
        return
    transform, size = model.card.preprocessing.transform(), model.card.preprocessing.image_size
    pictures = [images.store.read(one.id) for one in mistakes]
    made = [transform(picture) for picture in pictures]
    batch = torch.stack([view for view, _ in made]).to(model.device)
    places = {int(number): row for row, number in enumerate(predictions.ids.tolist())}
    shares = predictions.probabilities[[places[one.id] for one in mistakes]]
    method = best_method(model.module, among=[name for name in METHODS if name not in OF_CAPTUM])[0]
    asked = [torch.tensor([getattr(one, kind) for one in mistakes]) for kind in ("predicted", "true")]
    try:
        maps = [attribute(model.module, batch, classes, method).float().cpu() for classes in asked]
    except UserError:  # a model without blocks that give grids
        return
    explained = [
        Explained(
            f"label: {model.classes[one.true]}",
            seen(pictures[row], made[row][1], size),
            torch.stack([part[row] for part in maps]),
            (model.classes[one.predicted], model.classes[one.true]),
            (float(shares[row, one.predicted]), float(shares[row, one.true])),
        )
        for row, one in enumerate(mistakes)
    ]
    save_figure(folder / NAME, mistakes_attribution_figure(explained, METHODS[method].title))
