"""Wraps any timm model as a backbone that returns grids of features.

One forward pass of the model provides any number of outputs: the final grid, a grid per stage or a grid per block,
before or after the final norm. A grid always has the shape (B, D, H, W), without class tokens. In addition, the
backbone returns pooled features and the model's logits.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

from torch import Tensor, nn

from paucal.backbones.layout import LayoutHints, Size, last_tensor, to_grid
from paucal.backbones.probe import (
    HookedTensors,
    final_prefixes,
    make_dummy_images,
    make_feature_plan,
    model_name,
    temporary_eval_mode,
)
from paucal.types import FeatureRequest, Features, UserError

_LAST_GRID = FeatureRequest()  # default request


class FeatureBackbone(nn.Module):
    """A timm model whose features are available through the same interface for all model families.

    The levels of a `FeatureRequest` select these grids:

    - "last": the output of `model.forward_features`. Therefore, `norm=True` and `norm=False` give different grids if
      the model normalises the grid (ViT, Swin, Twins, ...), but the same grid if the model does not normalise its
      output (ResNet, PVTv2) or normalises only the pooled features (ConvNeXt, a mean-pooled ViT). For models with
      several branches (CrossViT, CoaT), the grid of the last branch is returned; for models whose output is only a
      class token (PiT), the deepest intermediate map is returned.
    - "stages": a grid per entry of timm's `feature_info`, which lists every block for models without stages (ViT).
    - "merged": the output of each of Swin's patch-merging layers, and the last grid. (timm's stages end before the
      merging.)
    - "blocks": the output of every block.

    With `norm=True` the last entry of "stages", "merged" and "blocks" is the last grid after the final norm, if the
    model has a final norm.

    To compile the module in place, call `backbone.compile()`.

    Args:
        model: A timm model.
        image_size: (height, width) in pixels of the images for which the model was built.

    Raises:
        UserError: the model has no spatial grid.

    Example:
        >>> import timm, torch
        >>> backbone = FeatureBackbone(timm.create_model("resnet18", num_classes=3), (64, 96))
        >>> backbone.grid, backbone.dim
        ((2, 3), 512)
        >>> [tuple(grid.shape) for grid in backbone(torch.zeros(1, 3, 64, 96)).grids]
        [(1, 512, 2, 3)]
    """

    def __init__(self, model: nn.Module, image_size: Size) -> None:
        super().__init__()
        self.model = model
        self.image_size = (int(image_size[0]), int(image_size[1]))
        self._hooked = HookedTensors()
        with temporary_eval_mode(self):
            self.plan = make_feature_plan(model, make_dummy_images(model, self.image_size), self._hooked)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the last grid at `image_size`."""
        return self.plan.last_shape[1:]

    @property
    def dim(self) -> int:
        """Number of channels of the last grid."""
        return self.plan.last_shape[0]

    @property
    def cell_size(self) -> tuple[float, float]:
        """(height, width) in pixels of the image area that one cell of the last grid covers."""
        return self.image_size[0] / self.grid[0], self.image_size[1] / self.grid[1]

    @property
    def num_classes(self) -> int:
        """Number of classes of the model's classifier; 0 if the model has no classifier."""
        return int(getattr(self.model, "num_classes", 0))

    @property
    def classifies_tokens(self) -> bool:
        """Whether the model has a classifier of tokens, as LV-ViT does."""
        return self.num_classes > 0 and getattr(self.model, "aux_head", None) is not None

    @overload
    def forward(
        self, images: Tensor, request: FeatureRequest = ..., dense: bool = ..., mix_box: Tensor | None = ...
    ) -> Features: ...

    @overload
    def forward(
        self, images: Tensor, request: tuple[FeatureRequest, ...], dense: bool = ..., mix_box: Tensor | None = ...
    ) -> list[Features]: ...

    def forward(
        self,
        images: Tensor,
        request: FeatureRequest | tuple[FeatureRequest, ...] = _LAST_GRID,
        dense: bool = False,
        mix_box: Tensor | None = None,
    ) -> Features | list[Features]:
        """Run the model once and return the requested features.

        Args:
            images: (B, C, H, W) images, normalised as the model expects.
            request: One request, or a tuple of requests, for which a list of features is returned.
            dense: Whether to return class logits and token logits separately; only for models that classify tokens.
            mix_box: (4,) int64 (top, left, bottom, right) of MixToken's box in cells of the grid, only for models that
                mix tokens themselves (LV-ViT); None for no mixing.
        """
        requests = (request,) if isinstance(request, FeatureRequest) else request
        final, maps, tensors = self._run_model(images, requests, mix_box)
        size = (images.shape[-2], images.shape[-1])
        prefixes = self.plan.prefixes
        if maps is None or self.plan.final_is_grid:
            last = self._to_grid(final, size, final_prefixes(prefixes))
        else:
            last = maps[-1]
        pooled = last_tensor(final)[:, 0] if self.plan.class_token else last.mean((2, 3))
        token_logits = distilled = None
        if dense:
            logits, token_logits = self.model.dense_logits(final)  # type: ignore[operator]
        else:
            logits = self.model.forward_head(final) if self.num_classes > 0 else None  # type: ignore[operator]
            # timm's models with a distillation token return a pair after `set_distilled_training`.
            logits, distilled = logits if isinstance(logits, tuple) else (logits, None)
        sides = (last.shape[2], last.shape[3])

        def grid_of(name: str) -> Tensor:
            return self._to_grid(tensors[name], size, prefixes, sides)

        features = [
            Features(self._requested_grids(item, last, maps, grid_of), pooled, logits, token_logits, distilled)
            for item in requests
        ]
        return features[0] if isinstance(request, FeatureRequest) else features

    def extract(
        self, images: Tensor, requests: Sequence[FeatureRequest], dense: bool = False, mix_box: Tensor | None = None
    ) -> list[Features]:
        """Return the features for several requests from one forward pass, using compiled code if there is any."""
        return self(images, tuple(requests), dense, mix_box)

    def shapes(
        self, request: FeatureRequest = _LAST_GRID, image_size: Size | None = None
    ) -> list[tuple[int, int, int]]:
        """Return (channels, rows, columns) of each grid of a request, from a forward pass with one image of zeros.

        The model's state, its training mode and the random generators stay unchanged.

        Args:
            request: Requested features.
            image_size: (height, width) in pixels; None for the backbone's image size.
        """
        with temporary_eval_mode(self):
            features = self.forward(make_dummy_images(self.model, image_size or self.image_size), request)
        return [(grid.shape[1], grid.shape[2], grid.shape[3]) for grid in features.grids]

    def _run_model(
        self, images: Tensor, requests: Sequence[FeatureRequest], mix_box: Tensor | None
    ) -> tuple[Any, list[Tensor] | None, dict[str, Any]]:
        """Return the model's final output, its maps per stage (None if not needed), and tensors by module name."""
        needs_stages = not self.plan.final_is_grid or any(request.levels == "stages" for request in requests)
        mix_argument = {} if mix_box is None else {"mix_box": mix_box}
        self._hooked.tensors = {}
        try:
            if needs_stages:
                if mix_argument:
                    raise UserError("the level 'stages' is not supported with MixToken in the model; use 'blocks'.")
                final, maps = self.model.forward_intermediates(images)  # type: ignore[operator]
            else:
                final, maps = self.model.forward_features(images, **mix_argument), None  # type: ignore[operator]
            tensors = self._hooked.tensors
        finally:
            self._hooked.tensors = None
        return final, maps, tensors

    def _to_grid(self, output: Any, size: Size, prefixes: tuple[int, ...], sides: Size | None = None) -> Tensor:
        grid = to_grid(output, size, prefixes, LayoutHints(self.plan.channels_last, sides))
        if grid is None:
            raise ValueError(f"an output of {model_name(self.model)} is not a grid for images of {size} pixels")
        return grid

    def _requested_grids(
        self, request: FeatureRequest, last: Tensor, maps: list[Tensor] | None, grid_of: Callable[[str], Tensor]
    ) -> list[Tensor]:
        norm = self.plan.norm
        if request.levels == "last":
            return [last if norm is None or request.norm else grid_of(norm)]
        if request.levels == "stages":
            grids = list(maps or [])
        elif request.levels == "merged":
            if not self.plan.merging_layers:
                raise UserError(
                    f"{model_name(self.model)} has no layers that merge patches, as Swin has; use 'stages' or "
                    "'blocks' instead."
                )
            grids = [*map(grid_of, self.plan.merging_layers), last if norm is None else grid_of(norm)]
        elif self.plan.blocks:
            grids = [grid_of(name) for name in self.plan.blocks]
        else:
            raise UserError(f"{model_name(self.model)} has no blocks that output grids; use 'stages' instead.")
        return grids if norm is None or not request.norm else [*grids[:-1], last]
