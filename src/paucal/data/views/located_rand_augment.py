"""RandAugment that says where every pixel came from.

timm's operations move pixels through affine maps of PIL, whose arguments are known when an operation is applied. The
operations stay timm's; a recorder in front of each that moves pixels notes its map.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from timm.data.auto_augment import AugmentOp, RandAugment
from torch import Tensor

# Source x = a x + b y + c, source y = d x + e y + f, in pixels.
Affine = tuple[float, float, float, float, float, float]

# What each of timm's functions does to the picture, in PIL's words, by the name of its operation.
_MOVES: dict[str, Callable[[float, int, int], Affine]] = {
    "ShearX": lambda level, width, height: (1, level, 0, 0, 1, 0),
    "ShearY": lambda level, width, height: (1, 0, 0, level, 1, 0),
    "TranslateX": lambda level, width, height: (1, 0, level, 0, 1, 0),
    "TranslateY": lambda level, width, height: (1, 0, 0, 0, 1, level),
    "TranslateXRel": lambda level, width, height: (1, 0, level * width, 0, 1, 0),
    "TranslateYRel": lambda level, width, height: (1, 0, 0, 0, 1, level * height),
    "Rotate": lambda level, width, height: turn(level, width, height),
}


class LocatedRandAugment:
    """timm's RandAugment, with the map from the result to the image it was given.

    Args:
        policy: built by timm; its operations are changed in place.

    Example:
        >>> from timm.data.auto_augment import rand_augment_transform
        >>> policy = LocatedRandAugment(rand_augment_transform("rand-m9-n1-p1", {}, ["TranslateXRel"]))
        >>> _, theta = policy(Image.new("RGB", (20, 10)))
        >>> theta[0, 0].item(), theta[0, 2].abs().item() > 0
        (1.0, True)
    """

    def __init__(self, policy: RandAugment) -> None:
        self.policy = policy
        self._theta = torch.eye(3)
        for operation in policy.ops:
            if operation.name in _MOVES:
                operation.aug_fn = _Recorded(self, operation)

    def __call__(self, image: Image.Image) -> tuple[Image.Image, Tensor]:
        """Return the changed image, of the same size, and the (3, 3) map from its points to those of the image.

        Points are normalised as in `types.Batch.geometry`.
        """
        self._theta = torch.eye(3)
        return self.policy(image), self._theta

    def note(self, move: Affine, size: tuple[int, int]) -> None:
        """Note a movement within an image of (width, height) pixels."""
        self._theta = self._theta @ normalised(move, size)


class _Recorded:
    """Takes the place of an operation's function: notes the movement, then makes it."""

    def __init__(self, policy: LocatedRandAugment, operation: AugmentOp) -> None:
        self.policy, self.name, self.function = policy, operation.name, operation.aug_fn

    def __call__(self, image: Image.Image, level: float, **settings: Any) -> Image.Image:
        self.policy.note(_MOVES[self.name](level, *image.size), image.size)
        return self.function(image, level, **settings)


def turn(degrees: float, width: int, height: int) -> Affine:
    """Return PIL's map of a turn, counter-clockwise, about the centre of the picture.

    The published token-labeling program turns its label maps about a point half a cell away.
    """
    angle = -math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = width / 2, height / 2
    return cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y


def normalised(move: Affine, size: tuple[int, int]) -> Tensor:
    """Return a map of pixels, whose edges are whole numbers, as (3, 3) in coordinates from -1 to 1."""
    a, b, c, d, e, f = move
    width, height = size
    return torch.tensor(
        [
            [a, b * height / width, a + b * height / width + 2 * c / width - 1],
            [d * width / height, e, d * width / height + e + 2 * f / height - 1],
            [0.0, 0.0, 1.0],
        ]
    )
