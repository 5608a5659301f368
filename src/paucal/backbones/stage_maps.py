"""Multi-scale feature maps from any backbone, for detectors and segmenters.

A backbone with stages (ResNet, Swin, EfficientNet) has a feature map per stride, from a stride of 4 pixels on. For a
backbone with a single grid (ViT, DHVT, LV-ViT), a simple pyramid is built from its last grid (ViTDet: Li et al., ECCV
2022, section 3).

Detectors and segmenters assume that strides are powers of two and that the cells of a map fill the image exactly
(torchvision's RoIAlign does not check this). These conditions are ensured for every model: images are padded on the
right and bottom, images for models with patches of 14 pixels are resized to 14/16 of their size, and a map with one row
or column too many or too few (PiT) is resized.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from paucal.backbones import BackboneSpec, FeatureBackbone, fit_to_image_size
from paucal.backbones.empty_models import build_empty, patch_size
from paucal.backbones.layout import Size
from paucal.backbones.probe import make_dummy_images, model_name, temporary_eval_mode
from paucal.backbones.sizing import fit_to_image_sizes
from paucal.types import FeatureRequest, UserError

MIN_STRIDE = 4  # smallest stride of a feature map in pixels
N_PYRAMID_LEVELS = 4  # number of feature maps built from a single grid
BATCH_NORM_CLASSES = (nn.modules.batchnorm._BatchNorm,)  # base classes of batch norms


class PyramidBackbone(nn.Module):
    """A backbone that returns feature maps with increasing strides, for images of any size.

    For models without batch norms (Swin, ConvNeXt), each map is normalised by a layer norm, as in the published
    detectors with these models. Parameters that affect no map (of a classifier or a last norm, for example) get
    `requires_grad=False`. Maps with strides below `finest` pixels are not computed.

    `strides` are powers of two in increasing order, in pixels. The sides of images are padded to multiples of
    `multiple`, the largest stride. `fixed_size` is the (height, width) in pixels to which all images are padded; None
    if the model runs at any size.
    """

    def __init__(self, backbone: FeatureBackbone, any_size: bool = True, finest: int = MIN_STRIDE) -> None:
        super().__init__()
        self.backbone = backbone
        stages = _stages_by_stride(backbone)
        self._stages = {stride: stage for stride, stage in stages.items() if len(stages) == 1 or stride >= finest}
        needs_norm = not any(isinstance(module, BATCH_NORM_CLASSES) for module in backbone.model.modules())
        self._has_single_grid = len(stages) == 1
        if not self._has_single_grid:
            self.strides = tuple(self._stages)
            self.channels = tuple(channels for _, channels in self._stages.values())
            self.levels = nn.ModuleList(LayerNorm2d(n) if needs_norm else nn.Identity() for n in self.channels)
            self._image_scale = 1.0
        else:
            stride = math.sqrt(math.prod(backbone.cell_size))
            factors = [factor for factor in pyramid_factors(stride) if _power_of_two(stride) / factor >= finest]
            self.strides = tuple(round(_power_of_two(stride) / factor) for factor in factors)
            self.levels = nn.ModuleList(_PyramidLevel(backbone.dim, factor) for factor in factors)
            self.channels = tuple(level.channels for level in self.levels if isinstance(level, _PyramidLevel))
            self._image_scale = stride / _power_of_two(stride)
        self.multiple = self.strides[-1]
        height, width = backbone.image_size
        self.fixed_size = None if any_size else (round(height / self._image_scale), round(width / self._image_scale))
        if self.fixed_size is not None and any(side % self.multiple for side in self.fixed_size):
            rows, columns = self.fixed_size
            raise UserError(
                f"{model_name(self.backbone.model)} only supports images of {rows}x{columns} pixels, but sides must be "
                f"multiples of {self.multiple}: set --img-size to a multiple, or choose another model."
            )
        self._freeze_unused_parameters()

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps of a batch, shallow to deep, for (B, C, H, W) images, normalised as the model expects.

        A map is (B, channels, H' / stride, W' / stride), where H' and W' are the sides after padding.
        """
        return self.maps_from_grids(self.grids(images), self.padded_size(images.shape[-2], images.shape[-1]))

    def grids(self, images: Tensor) -> list[Tensor]:
        """Return the model's feature maps of a batch: one per level, or the one from which all levels are built."""
        images = self._pad_images(images)
        height, width = images.shape[-2:]
        if self._image_scale != 1:
            input_size = (round(height * self._image_scale), round(width * self._image_scale))
            images = F.interpolate(images, input_size, mode="bilinear", antialias=True)
        if self._has_single_grid:
            return [self.backbone(images).grids[0]]
        indices = [index for index, _ in self._stages.values()]
        return self.backbone.model.forward_intermediates(  # type: ignore[operator]
            images, indices=indices, intermediates_only=True
        )

    def maps_from_grids(self, grids: Sequence[Tensor], size: Size) -> list[Tensor]:
        """Return the maps of a batch from the output of `grids`, for images that have the size `size` after padding."""
        per_level = [*grids] * (len(self.levels) if self._has_single_grid else 1)
        maps = [level(grid) for level, grid in zip(self.levels, per_level, strict=True)]
        for level, stride in enumerate(self.strides):
            map_size = (size[0] // stride, size[1] // stride)
            if (maps[level].shape[-2], maps[level].shape[-1]) != map_size:
                maps[level] = F.interpolate(maps[level], map_size, mode="bilinear", align_corners=False)
        return maps

    def padded_size(self, height: int, width: int) -> Size:
        """Return the (height, width) in pixels to which images of this size are padded."""
        if self.fixed_size is None:  # -(-a // b) would be wrong in ONNX, which rounds negative quotients differently
            rows, columns = ((side + self.multiple - 1) // self.multiple for side in (height, width))
            return rows * self.multiple, columns * self.multiple
        if height > self.fixed_size[0] or width > self.fixed_size[1]:
            rows, columns = self.fixed_size
            raise UserError(
                f"{model_name(self.backbone.model)} is built for {rows}x{columns} pixels, but got {height}x{width}: "
                "build the model for the largest image, or choose a model for any size, such as a Swin or a ResNet."
            )
        return self.fixed_size

    def _pad_images(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        rows, columns = self.padded_size(height, width)
        # Always pad if sides are dynamic, since torch.export would bake in the branch taken for its example input.
        is_dynamic = isinstance(height, torch.SymInt) or isinstance(width, torch.SymInt)
        if is_dynamic or (rows, columns) != (height, width):
            return F.pad(images, (0, columns - width, 0, rows - height))
        return images

    def _freeze_unused_parameters(self) -> None:
        """Freeze parameters that affect no map, since distributed training would wait for their gradients."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        side = 2 * self.multiple
        with temporary_eval_mode(self), torch.enable_grad():
            images = make_dummy_images(self.backbone.model, self.fixed_size or (side, side))
            total = sum((grid.sum() for grid in self(images)), start=images.new_zeros(()))
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is None:
                parameter.requires_grad_(False)


def build_pyramid_backbone(
    spec: BackboneSpec, drop_path_rate: float | None = None, finest: int = MIN_STRIDE
) -> PyramidBackbone:
    """Build a backbone that returns feature maps, for images of any size if the model supports this.

    The size in the specification is that of the largest images. If `drop_path_rate` is None, the model's default is
    used. See `PyramidBackbone` for `finest`.
    """
    spec = replace(spec, image_size=_input_size(spec))
    other_size = (2 * spec.image_size[0], spec.image_size[1])
    arguments = {**spec.arguments, **fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments}
    try:
        fit_to_image_sizes(spec.name, [spec.image_size, other_size], arguments)
    except UserError:
        return PyramidBackbone(spec.build(drop_path_rate=drop_path_rate), any_size=False, finest=finest)
    return PyramidBackbone(spec.build([spec.image_size, other_size], drop_path_rate), finest=finest)


def pyramid_factors(stride: float) -> tuple[float, ...]:
    """Return the factor by which a grid with this stride in pixels is enlarged for each level, the finest level first.

    For patches of 16 pixels, the factors are ViTDet's: 4, 2, 1 and 1/2. For patches of 4 pixels or more, the finest
    level has a stride of 4 pixels.
    """
    largest_factor = max(1.0, _power_of_two(stride) / MIN_STRIDE)
    return tuple(largest_factor / 2**level for level in range(N_PYRAMID_LEVELS))


class _PyramidLevel(nn.Module):
    """A level of the simple pyramid: enlarges a grid by transposed convolutions, or reduces it by 2 x 2 max pooling."""

    def __init__(self, channels: int, factor: float) -> None:
        super().__init__()
        doublings = round(math.log2(factor))
        widths = [max(1, channels // 2**n) for n in range(max(doublings, 0) + 1)]
        layers: list[nn.Module] = [nn.MaxPool2d(2) for _ in range(-doublings)]
        for in_width, out_width in pairwise(widths):
            layers += [nn.ConvTranspose2d(in_width, out_width, 2, 2), LayerNorm2d(out_width), nn.GELU()]
        self.channels = widths[-1]
        # Leave out the norm and the GELU after the last convolution.
        self.layers = nn.Sequential(*(layers[:-2] if doublings > 0 else layers))

    def forward(self, grid: Tensor) -> Tensor:
        return self.layers(grid)


def _stages_by_stride(backbone: FeatureBackbone) -> dict[int, tuple[int, int]]:
    """Return the (index, channels) of the deepest map with each stride, by stride, for strides of at least 4 pixels.

    Strides are rounded to powers of two. For a model without stages, the only key is 0.
    """
    if not hasattr(backbone.model, "forward_intermediates"):
        return {0: (0, backbone.dim)}
    area = math.prod(backbone.image_size)
    stages: dict[int, tuple[int, int]] = {}
    for index, (channels, rows, columns) in enumerate(backbone.shapes(FeatureRequest("stages"))):
        stride = _power_of_two(math.sqrt(area / (rows * columns)))
        if stride >= MIN_STRIDE:
            stages[stride] = (index, channels)
    return dict(sorted(stages.items())) or {0: (0, backbone.dim)}


def _input_size(spec: BackboneSpec) -> Size:
    """Return the (height, width) in pixels of the images that the model gets.

    This is the image size in the spec. If the patch size is not a power of two, such as 14 pixels, the image size is
    scaled by 14/16 and rounded up to a multiple of the patch size.
    """
    patch = patch_size(build_empty(spec.name, spec.arguments))
    if patch is None or all(side == _power_of_two(side) for side in patch):
        return spec.image_size
    cells = [-(-side // _power_of_two(length)) for side, length in zip(spec.image_size, patch, strict=True)]
    return cells[0] * patch[0], cells[1] * patch[1]


def _power_of_two(stride: float) -> int:
    return 2 ** round(math.log2(stride))
