"""What a model, and on request its teacher, see in every part of an image: `--show tokens`."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.figures.tokens import tokens_figure
from paucal.labeling import DenseTeacher
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.types import UserError
from paucal.verbs.explain.inputs import Viewed, view_of


class TokenViews:
    """Asks models at every cell, as token labeling asks its teacher.

    Args:
        models: (title, model) of each; all know the classes of the last, which images are prepared for.
    """

    def __init__(self, models: list[tuple[str, TrainedModel]]) -> None:
        self._model = models[-1][1]
        self.classes = self._model.classes
        self._asked = [
            (title, one, DenseTeacher(one.module, one.card.preprocessing.image_size)) for title, one in models
        ]

    def figure(self, image: Viewed) -> Figure:
        """Draw an image with the token labels of all models."""
        return tokens_figure(
            image.picture, [(title, self._shares(one, dense, image)) for title, one, dense in self._asked], self.classes
        )

    @torch.no_grad()
    def _shares(self, model: TrainedModel, dense: DenseTeacher, image: Viewed) -> Tensor:
        maps, _ = dense(view_of(image.view[None], self._model, model))
        order = [model.classes.index(name) for name in self.classes]
        logits = maps[0].float()
        return (logits.sigmoid() if model.card.several else logits.softmax(0))[order].cpu()


def open_token_views(model: TrainedModel, teacher: str | None, device: str) -> TokenViews:
    """Open the model's token predictions, and those of a teacher beside them.

    Raises:
        UserError: a model cannot be asked at single cells, or the teacher does not know the model's classes.
    """
    model.require_classifier()
    if teacher is None:
        return TokenViews([("what the cells are taken for", model)])
    other = open_named(teacher, device, setting="--teacher").require_classifier()
    missing = [name for name in model.classes if name not in other.classes]
    if missing:
        raise UserError(f"--teacher: {teacher} does not know the class {missing[0]!r} of the model: give another.")
    return TokenViews([("teacher", other), ("student", model)])
