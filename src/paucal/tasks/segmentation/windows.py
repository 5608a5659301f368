"""Inference on images of any size: overlapping sliding windows, several scales, and mirror images.

As in the papers' evaluation (DrLoc, section 4; LV-ViT, section 4.4), logits are averaged where windows overlap.
Probabilities are averaged over scales and mirror images.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paucal.backbones.layout import Size


@dataclass(frozen=True)
class WindowOptions:
    """Options of inference on a whole image."""

    size: Size  # (height, width) of a window in pixels
    overlap: float = 1 / 3  # overlap of consecutive windows, as a fraction of the window size
    scales: tuple[float, ...] = (1.0,)  # factors on the image's sides, over which probabilities are averaged
    mirror: bool = False  # whether to average also over the mirror image
    batch: int = 4  # number of windows per forward pass
    whole: bool = False  # whether to run the network on the whole image at once instead of on windows
    resize_to: Size | None = None  # maximum shorter and longer side in pixels before `scales`; None to keep the size


@torch.inference_mode()
def pixel_probabilities(network: nn.Module, image: Tensor, options: WindowOptions) -> Tensor:
    """Return the (K, H, W) float32 class probabilities of the pixels of a normalised (C, H, W) image.

    The network must map (B, C, h, w) windows to (B, K, h, w) logits, and must be in evaluation mode and on the image's
    device.
    """
    total, height, width = None, image.shape[-2], image.shape[-1]
    fit_scale = scale_to_fit((height, width), options.resize_to)
    for scale, mirrored in product(options.scales, (False, True) if options.mirror else (False,)):
        size = (max(1, round(height * fit_scale * scale)), max(1, round(width * fit_scale * scale)))
        view = image.flip(-1) if mirrored else image
        if size != (height, width):
            view = F.interpolate(view[None], size, mode="bilinear", antialias=True)[0]
        logits = network(view[None])[0].float() if options.whole else window_logits(network, view, options)
        if size != (height, width):
            logits = F.interpolate(logits[None], (height, width), mode="bilinear", align_corners=False)[0]
        probabilities = (logits.flip(-1) if mirrored else logits).softmax(0)
        total = probabilities if total is None else total + probabilities
    assert total is not None
    return total / (len(options.scales) * (2 if options.mirror else 1))


def window_logits(network: nn.Module, image: Tensor, options: WindowOptions) -> Tensor:
    """Return (K, H, W) float32 logits: for each pixel, the mean over all windows that cover the pixel.

    An image that is smaller than a window is padded on the right and bottom with zeros, which are the mean colour.
    """
    height, width = image.shape[-2:]
    rows, columns = options.size
    padded = F.pad(image, (0, max(0, columns - width), 0, max(0, rows - height)))
    tops = window_starts(padded.shape[-2], rows, options.overlap)
    lefts = window_starts(padded.shape[-1], columns, options.overlap)
    corners = list(product(tops, lefts))
    total: Tensor = padded.new_zeros(0)
    counts = padded.new_zeros(1, *padded.shape[-2:])
    for first in range(0, len(corners), options.batch):
        batch = corners[first : first + options.batch]
        windows = torch.stack([padded[:, top : top + rows, left : left + columns] for top, left in batch])
        logits = network(windows).float()
        if not len(total):
            total = logits.new_zeros(logits.shape[1], *padded.shape[-2:])
        for (top, left), window in zip(batch, logits, strict=True):
            total[:, top : top + rows, left : left + columns] += window
            counts[:, top : top + rows, left : left + columns] += 1
    return (total / counts)[:, :height, :width]


def window_starts(length: int, window: int, overlap: float) -> list[int]:
    """Return the first pixel of each window along a side of `length` pixels.

    Windows are equally spaced, except that the last window ends at the edge of the image.

    Example:
        >>> window_starts(512, 256, 1 / 3), window_starts(256, 256, 0.0), window_starts(300, 256, 0.0)
        ([0, 171, 256], [0], [0, 44])
    """
    stride = max(1, round(window * (1 - overlap)))
    count = max(0, -(-(length - window) // stride))
    return [min(index * stride, length - window) for index in range(count + 1)]


def scale_to_fit(size: Size, sides: Size | None) -> float:
    """Return the factor that scales an image to the largest size within `sides` (in pixels); 1 if `sides` is None.

    Example:
        >>> scale_to_fit((256, 256), (512, 2048)), scale_to_fit((200, 1000), (512, 2048)), scale_to_fit((8, 9), None)
        (2.0, 2.048, 1.0)
    """
    return 1.0 if sides is None else min(max(sides) / max(size), min(sides) / min(size))
