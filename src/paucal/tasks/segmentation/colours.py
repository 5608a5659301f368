"""The photometric distortion of the papers' programs: each change of colours with a chance of one half.

Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, as the programs for segmentation have it: brightness is
added, contrast and saturation are multiplied, the hue turns, and the contrast comes second or last.
"""

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

CHANCE = 0.5
BRIGHTNESS = 32.0  # of 255, added at most
CONTRAST = SATURATION = (0.5, 1.5)
HUE_STEPS, TURN = 18, 180  # of 2 degrees each; steps of a whole turn


def distort_colours(pixels: Tensor) -> Tensor:
    """Return (3, H, W) uint8 pixels with other colours, drawn with torch's global generator."""
    if _happens():
        pixels = _converted(pixels + _between(-BRIGHTNESS, BRIGHTNESS))
    contrast_comes_first = _happens()
    if contrast_comes_first:
        pixels = _change_contrast(pixels)
    if _happens():
        pixels = saturated(pixels, _between(*SATURATION))
    if _happens():
        pixels = transforms.adjust_hue(pixels, int(torch.randint(-HUE_STEPS, HUE_STEPS, ())) / TURN)
    return pixels if contrast_comes_first else _change_contrast(pixels)


def saturated(pixels: Tensor, factor: float) -> Tensor:
    """Return uint8 pixels whose saturation (of hue, saturation and value) is multiplied, and is 1 at most."""
    floats = pixels.float()
    value, least = floats.amax(0, keepdim=True), floats.amin(0, keepdim=True)
    most = value / (value - least).clamp_min(1e-6)  # the factor that makes the saturation 1
    return _converted(value - (value - floats) * most.clamp_max(factor) + 0.5)


def _change_contrast(pixels: Tensor) -> Tensor:
    return _converted(pixels * _between(*CONTRAST)) if _happens() else pixels


def _converted(floats: Tensor) -> Tensor:
    return floats.clamp(0, 255).to(torch.uint8)


def _happens() -> bool:
    return float(torch.rand(())) < CHANCE


def _between(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
