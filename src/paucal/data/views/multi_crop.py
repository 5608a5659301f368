"""Multi-crop augmentation: groups of crops of several sizes, augmented as in DINO and EsViT, in LeJEPA, or in DeiT.

EsViT (arXiv:2106.09785) uses the augmentation of DINO (arXiv:2104.14294, implementation details) or timm's training
transform (DeiT). LeJEPA (arXiv:2511.08544, README of its code) uses DINO's operations with equal probabilities for all
crops. Unlike in the published code, all pipelines support any number of groups of any size.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import adjust_hue

from paucal.data.channels.pixels import MultichannelImage
from paucal.data.views.augmentation import Augmentation, Resize, check_probability
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import Size, TrainTransform, ViewTransform, match_aspect_ratio, random_resized_crop
from paucal.types import Crops, UserError

Pipeline = Literal["dino", "alike", "deit"]

# Ranges of a crop's area as a fraction of the image's area.
GLOBAL_SCALE, LOCAL_SCALE = (0.4, 1.0), (0.05, 0.4)
ALIKE_GLOBAL_SCALE, ALIKE_LOCAL_SCALE = (0.3, 1.0), (0.05, 0.3)
DEIT_SCALE = (0.08, 1.0)  # timm's default, which EsViT's code uses for both global and local crops
BLUR = (0.1, 2.0)  # range of the radius of the Gaussian blur in pixels
JITTER = (0.4, 0.4, 0.2, 0.1)  # maximum relative change of brightness, contrast and saturation; maximum shift of hue
JITTER_PROB, GREY_PROB = 0.8, 0.2  # probabilities of changing the colours and of converting to grey
# Probabilities of (blur, solarisation) in DINO for the first global crop, other global crops, and local crops.
FIRST_PROBS, OTHER_PROBS, LOCAL_PROBS = (1.0, 0.0), (0.1, 0.2), (0.5, 0.0)
ALIKE_PROBS = (0.5, 0.2)  # probabilities of (blur, solarisation) in LeJEPA, for all crops
SOLARISED = [value if value < 128 else 255 - value for value in range(256)] * 3  # Pillow lookup table of three channels


class DinoCrop:
    """DINO's transform: crop, flip, change the colours, blur, solarise and normalise, in the order of DINO's code.

    Random numbers are drawn from torch's global generator (CPU); see `randomness.reseed`. Images without exactly three
    channels are blurred, but their colours are not changed. A crop takes from 1 ms (32 pixels) to 7 ms (224 pixels) on
    a slow core, mostly for hue and blur in Pillow.

    `scale` is the range of the crop's area as a fraction of the image's area, and `blur` the range of the radius in
    pixels of the view. Solarising inverts the pixel values from 128 on. `jitter_prob` is the probability of changing
    brightness, contrast, saturation and hue, in random order.
    """

    def __init__(
        self,
        size: Size,
        scale: tuple[float, float],
        normalisation: Normalisation,
        blur_prob: float = 0.5,
        solarise_prob: float = 0.0,
        blur: tuple[float, float] = BLUR,
        hflip: float = 0.5,
        jitter_prob: float = JITTER_PROB,
    ) -> None:
        self.size, self.normalisation = size, normalisation
        self._crop = v2.RandomResizedCrop(size, scale)
        self._probs = (hflip, jitter_prob, GREY_PROB, blur_prob, solarise_prob)
        self._blur = blur

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        """Return the (C, H, W) view, and the (2, 3) map from view to image coordinates (see `types.Batch.geometry`)."""
        view, theta = random_resized_crop(self._crop, image, self.size, "bicubic")
        draws = torch.rand(len(self._probs)).tolist()
        flip, jitter, grey, blur, solarise = (draw < prob for draw, prob in zip(draws, self._probs, strict=True))
        if flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            theta[0, 0] = -theta[0, 0]
        is_rgb = not isinstance(view, MultichannelImage)
        if jitter and is_rgb:
            view = jitter_colours(view)
        if grey and is_rgb:
            view = view.convert("L").convert("RGB")
        if blur:
            low, high = self._blur
            view = view.filter(ImageFilter.GaussianBlur(low + (high - low) * torch.rand(()).item()))
        if solarise and is_rgb:
            view = view.point(SOLARISED)
        return self.normalisation.apply(view), theta


def _fit_and_transform(
    image: Image.Image, transform: ViewTransform, size: Size, resize: Resize, normalisation: Normalisation
) -> tuple[Tensor, Tensor]:
    """Give an image the aspect ratio of a view of `size`, and return its view and the map from view to image."""
    fitted, factors = match_aspect_ratio(image, size, resize, normalisation, "bicubic")
    view, theta = transform(fitted)
    return view, theta * factors


def jitter_colours(view: Image.Image) -> Image.Image:
    """Change brightness, contrast, saturation and hue by random factors in random order, as torchvision does."""
    factors = [(2 * draw - 1) * strength for draw, strength in zip(torch.rand(4).tolist(), JITTER, strict=True)]
    # For 32-pixel images, torchvision's ColorJitter would take twice as long, since it checks its arguments.
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for number in torch.randperm(4).tolist():
        if number < len(enhancers):
            view = enhancers[number](view).enhance(1 + factors[number])
        else:
            view = adjust_hue(view, factors[number])  # type: ignore[assignment, arg-type]  # typed for tensors only
    return view


def build_crop_transforms(
    pipeline: Pipeline,
    groups: Sequence[Crops],
    normalisation: Normalisation,
    image_size: Size = (224, 224),
    blur: tuple[float, float] = BLUR,
    hflip: float = 0.5,
    jitter_prob: float = JITTER_PROB,
    resize: Resize = "crop",
) -> list[tuple[ViewTransform, int]]:
    """Return the `views` argument of `ViewDataset`: (transform, count) pairs in the order of the groups.

    The first group has the global crops, any others have local crops. The default scale is the published one. The
    pipeline "dino" applies `DinoCrop`: the first global crop is blurred; of the other global crops, a tenth are blurred
    and a fifth are solarised; half of the local crops are blurred. "alike" applies `DinoCrop` with equal probabilities:
    half of all crops are blurred, and a fifth are solarised. "deit" applies timm's training transform: crop, flip,
    RandAugment rand-m9-mstd0.5-inc1, and random erasing for a quarter of the crops.

    The published range of `blur`, the radius in pixels of the view, is for crops of 224 and 96 pixels. Much smaller
    crops would lose all detail: for a crop of `side` pixels, multiply the range by side / 224. `resize` gives images
    the aspect ratio of `image_size` before cropping; see `match_aspect_ratio`.
    """
    _check_crops(pipeline, groups, image_size, blur)
    check_probability("hflip", hflip)
    check_probability("jitter_prob", jitter_prob)
    views: list[tuple[ViewTransform, int]] = []
    for number, crops in enumerate(groups):
        size = crops.sides or image_size
        if pipeline == "deit":
            augmentation = Augmentation(scale=crops.scale or DEIT_SCALE, hflip=hflip)
            views.append((TrainTransform(size, augmentation, normalisation), crops.count))
            continue
        if pipeline == "alike":
            scale = ALIKE_LOCAL_SCALE if number else ALIKE_GLOBAL_SCALE
            probs_and_counts = [(ALIKE_PROBS, crops.count)]
        elif number == 0:
            scale, probs_and_counts = GLOBAL_SCALE, [(FIRST_PROBS, 1), (OTHER_PROBS, crops.count - 1)]
        else:
            scale, probs_and_counts = LOCAL_SCALE, [(LOCAL_PROBS, crops.count)]
        for probs, count in probs_and_counts:
            crop = DinoCrop(size, crops.scale or scale, normalisation, *probs, blur, hflip, jitter_prob)
            views.append((crop, count))
    nonempty = [(transform, count) for transform, count in views if count]
    if resize == "crop":
        return nonempty
    fit = partial(_fit_and_transform, size=image_size, resize=resize, normalisation=normalisation)
    return [(partial(fit, transform=transform), count) for transform, count in nonempty]


def _check_crops(pipeline: str, groups: Sequence[Crops], image_size: Size, blur: tuple[float, float]) -> None:
    if pipeline not in get_args(Pipeline):
        raise UserError(f"the pipeline of crops is {pipeline!r}; expected dino, alike or deit.")
    if not groups or groups[0].count < 1:
        raise UserError(
            "there is no global crop, but the teacher gets only global crops: give at least one global crop, "
            "preferably two."
        )
    for crops in groups:
        size, (low, high) = crops.sides or image_size, crops.scale or LOCAL_SCALE
        if crops.count < 0 or min(size) < 1:
            raise UserError(
                f"a group of crops has {crops.count} crops with (height, width) {size}; expected 0 or more crops of at "
                "least 1 x 1 pixel."
            )
        if not 0 < low <= high <= 1:
            raise UserError(
                f"the scale of a crop is {crops.scale}; expected the minimum and the maximum fraction of the image's "
                "area, above 0 and at most 1."
            )
    if not 0 <= blur[0] <= blur[1]:
        raise UserError(f"the radius of the blur is {blur}; expected a minimum and a maximum in pixels, 0 or more.")
