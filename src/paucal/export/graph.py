"""What is exported: a network alone, or one that takes pixels and gives probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.export.preprocessing import PixelInput
from paucal.models.trained import TrainedModel

EXAMPLES = 2  # images of the example; a batch of one would be taken for a constant


class FromPixels(nn.Module):
    """A classifier with its preprocessing before it and its probabilities after it.

    Shape:
        - pixels: (N, H, W, 3) uint8
        - output: (N, K) probabilities, at the temperature of the model
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.input, self.network = PixelInput(model.card.preprocessing), model.module
        self.card = model.card

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the probabilities of each class."""
        return self.card.shares(self.network(self.input(pixels)))


@dataclass(frozen=True)
class Graph:
    """A module with all that an exporter wants to know.

    Attributes:
        module: Module in evaluation mode, on the CPU.
        example: An input that it is traced with.
        dynamic: The dimensions of the input that may be of any length, by name.
        input: Name of the input: "images", normalised floats, or "pixels", bytes.
        output: Name of the output: "logits" or "probabilities".
    """

    module: nn.Module
    example: Tensor
    dynamic: dict[int, str]
    input: str
    output: str


def graph_of(model: TrainedModel, preprocessing: bool) -> Graph:
    """Return what is exported of a model on the CPU.

    Args:
        model: Model with a classifier.
        preprocessing: Whether the graph begins with pixels and ends with probabilities.

    Raises:
        UserError: the preprocessing cannot be part of a graph.
    """
    height, width = model.card.preprocessing.image_size
    if not preprocessing:
        example = torch.zeros(EXAMPLES, model.card.backbone.in_chans, height, width)
        return Graph(model.module.eval(), example, {0: "batch"}, "images", "logits")
    pixels = torch.zeros(EXAMPLES, height + 32, width + 48, 3, dtype=torch.uint8)
    names = {0: "batch", 1: "height", 2: "width"}
    return Graph(FromPixels(model).eval(), pixels, names, "pixels", "probabilities")
