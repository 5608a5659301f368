"""Token labeling, in which every token is trained on a teacher's label for the token's area of the image.

Source: Jiang et al., "All Tokens Matter: Token Labeling for Training Better Vision Transformers", NeurIPS 2021. The
authors' code trains LV-ViT on ImageNet's 1,000 classes. This module supports any backbone with a feature map, and any
classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paucal.backbones.families.common.contract import new_classifier
from paucal.backbones.families.lvvit import exchange_tokens
from paucal.backbones.features import FeatureBackbone
from paucal.losses.label_targets import SparseTargets, compact_maps, map_targets, transpose_geometry
from paucal.losses.token_labeling import Box, TokenLabelingReading, draw_mix_box, kept_fraction, token_label_loss
from paucal.objectives.base import Term, seed_of_step
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.supervised import ClassifierObjective
from paucal.types import Batch, DataRequest, FeatureRequest, Features, LossTerms, Progress


@dataclass(frozen=True)
class TokenLabelingOptions:
    """Options of token labeling.

    Attributes:
        reading: Variant of the loss, including its weights.
        mix_token: Whether MixToken is used in training. MixToken replaces a box of each image's tokens by tokens of
            another image.
        label_smoothing: Fraction of each target that is spread over all classes.
        like_authors_code: Whether to reproduce three mistakes of the published code: the labels of a crop are looked up
            with rows and columns exchanged, label maps of central squares are used as maps of whole images, and
            smoothed targets sum to more than 1. (A fourth mistake, rotating maps about a point that is half a cell off,
            is not reproduced.)
        seed: Seed of the random boxes of MixToken.
    """

    reading: TokenLabelingReading = field(default_factory=TokenLabelingReading)
    mix_token: bool = True
    label_smoothing: float = 0.1
    like_authors_code: bool = False
    seed: int = 0


class TokenLabeling(ClassifierObjective):
    """Soft cross-entropy of the class logits and of every token's logits, with targets from a teacher's label map.

    LV-ViT has a classifier for tokens and applies MixToken inside the network; its deployed logits combine class and
    token logits. Any other backbone gets a linear classifier on its last feature map, which is not deployed, and
    MixToken is applied to the images before the backbone, with boxes that end at borders of the grid's cells.

    If the dense weight is 0 and MixToken is off, only the class logits are trained, which is ReLabel (Yun et al., CVPR
    2021).

    For the arguments other than `options` see `ClassifierObjective`.

    Raises:
        ValueError: The backbone has no classifier.
    """

    data_request = DataRequest(geometry=True, label_maps=True, mixing=False)

    def __init__(
        self,
        backbone: FeatureBackbone,
        options: TokenLabelingOptions | None = None,
        terms: Mapping[str, Term] | None = None,
        tuning: FineTuning | None = None,
    ) -> None:
        super().__init__(backbone, terms, tuning, reserved_names=("class", "tokens"))
        self.options = options or TokenLabelingOptions()
        trains_tokens = self.options.reading.dense_weight > 0
        self.dense = trains_tokens and backbone.classifies_tokens
        needs_head = trains_tokens and not self.dense
        self.aux_head = new_classifier(backbone.dim, backbone.num_classes) if needs_head else None

    def forward(self, batch: Batch, progress: Progress) -> LossTerms:
        """Return the losses named "class" and "tokens", and the extra losses.

        Raises:
            ValueError: The batch has no label maps or no geometry.
        """
        if batch.label_maps is None or batch.geometry is None:
            raise ValueError("token labeling needs a batch with label_maps and geometry, but at least one is None")
        if self.training:
            self.tuner.set_modes(progress)
        box = self._draw_box(progress) if self.training and self.options.mix_token else None
        features = self._extract_mixed(batch.views[0], box)
        reading, first = self.options.reading, features[0]
        image_targets, token_targets = self._targets(batch)
        truth = None
        if reading.use_truth:
            if batch.labels is None:
                raise ValueError("use_truth mixes the true class into the targets, but the batch has no labels")
            ones = torch.ones_like(batch.labels[:, None, None], dtype=torch.float32)
            exact = SparseTargets(
                batch.labels[:, None], ones, torch.zeros_like(ones[..., 0]), self.backbone.num_classes
            )
            truth = exact.smoothed(self.options.label_smoothing)
        kept = kept_fraction(box, self.backbone.grid)
        assert first.logits is not None
        tokens = (self._token_logits(first, box), token_targets) if reading.dense_weight > 0 else (None, None)
        label_losses = token_label_loss(first.logits, image_targets, *tokens, kept=kept, truth=truth, reading=reading)
        losses = LossTerms({"class": label_losses.whole}, {"class": reading.class_weight})
        if label_losses.tokens is not None:
            losses.values["tokens"], losses.weights["tokens"] = label_losses.tokens, reading.dense_weight
        self.add_terms(losses, features[1:], batch, progress)
        return losses

    def _draw_box(self, progress: Progress) -> Box:
        # With this seed, all processes draw the same box, and a repeated step draws the same box again.
        generator = torch.Generator().manual_seed(seed_of_step(self.options.seed, progress.micro_step))
        return draw_mix_box(self.backbone.grid, generator)

    def _extract_mixed(self, images: Tensor, box: Box | None) -> list[Features]:
        requests = [FeatureRequest(), *self.requests]
        if not self.dense:
            mixed = images if box is None else swap_boxes(images, box, self.backbone.grid)
            return self.backbone.extract(mixed, requests)
        # The box is passed as a tensor, since `torch.compile` would compile again for each tuple of integers.
        box_tensor = None if box is None else torch.tensor(box).to(images.device, non_blocking=images.is_cuda)
        return self.backbone.extract(images, requests, dense=True, mix_box=box_tensor)

    def _token_logits(self, features: Features, box: Box | None) -> Tensor:
        """Return the (B, H * W, K) token logits; logits of exchanged tokens are put back in the original image."""
        if self.aux_head is None:
            assert features.token_logits is not None
            logits = features.token_logits
        else:
            logits = self.aux_head(features.grids[0].flatten(2).transpose(1, 2))
        return logits if box is None else exchange_tokens(logits, box, self.backbone.grid)

    def _targets(self, batch: Batch) -> tuple[SparseTargets, SparseTargets]:
        """Return the targets of the views, one per view, and the targets of the tokens of each view."""
        label_maps, geometry = batch.label_maps, batch.geometry
        assert label_maps is not None
        assert geometry is not None
        classes, options = label_maps["classes"], self.options
        maps = compact_maps(label_maps["values"], label_maps["slots"], classes.shape[1])
        # The authors' code also uses maps of central squares as maps of whole images.
        view_geometry = transpose_geometry(geometry[0]) if options.like_authors_code else geometry[0]
        covered = None if options.like_authors_code else label_maps.get("covered")
        count, n_teacher_classes = self.backbone.num_classes, label_maps.get("teacher_classes")
        targets = []
        for size in ((1, 1), self.backbone.grid):
            exact = map_targets(maps, classes, view_geometry, size, count, covered, n_teacher_classes)
            targets.append(exact.smoothed(options.label_smoothing, options.like_authors_code))
        return targets[0], targets[1]


def swap_boxes(images: Tensor, box: Box, grid: tuple[int, int]) -> Tensor:
    """Exchange a box of pixels between the images i and B - 1 - i of a batch (B, C, H, W).

    `box` is (top, left, bottom, right) in cells of the backbone's `grid`, which has (rows, columns).
    """
    height, width = images.shape[-2:]
    top, bottom = (round(edge * height / grid[0]) for edge in (box[0], box[2]))
    left, right = (round(edge * width / grid[1]) for edge in (box[1], box[3]))
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
    return mixed
