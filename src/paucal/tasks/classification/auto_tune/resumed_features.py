"""Compute features with a pretrained network and later with the tuned network, but run the frozen stages only once.

Tuning often leaves the first stages frozen, and these stages take most of the time: four fifths of a forward pass of
EfficientNet-Lite0 on one core. The outputs of the frozen stages are therefore stored, and the tuned network continues
from the stored outputs.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.backbones.frozen_stages import FrozenStages
from paucal.backbones.layout import Size
from paucal.backbones.probe import make_dummy_images, recorded_outputs, temporary_eval_mode
from paucal.backbones.stage_classifier import StagePool, last_stage_poolings
from paucal.models.features import ClassifierInputExtractor
from paucal.types import UserError

FROZEN_FILE = "unlabelled-frozen.safetensors"  # file that is removed at the end of the run
BATCH_SIZE = 32  # number of images in a batch of stored outputs
TOLERANCE = 1e-2  # tolerance for features computed from float16 outputs, relative to the features' standard deviation


@dataclass(frozen=True)
class FrozenOutputs:
    """Outputs of a network's frozen stages for N images."""

    activations: Tensor  # (N, ...) float16 inputs of the first trained stage
    # (N, 2 C) float32 pooled maps of frozen stages that are part of the features: C means, then C standard deviations.
    # C is 0 if no frozen stage is pooled.
    pooled: Tensor
    seconds: float  # mean seconds that the trained stages take per image, in float32

    def select(self, rows: Tensor) -> "FrozenOutputs":
        """Return the outputs for some images, given by indices or by (N,) booleans."""
        return FrozenOutputs(self.activations[rows], self.pooled[rows], self.seconds)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the fields as tensors, for a safetensors file."""
        seconds = torch.tensor(self.seconds, dtype=torch.float64)
        return {"activations": self.activations, "pooled": self.pooled, "seconds": seconds}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "FrozenOutputs":
        """Return the outputs that `to_tensors` has turned into tensors."""
        return cls(tensors["activations"], tensors["pooled"], float(tensors["seconds"]))


class ResumableFeatureExtractor(nn.Module):
    """Outputs the (B, D) features of a network, and stores the outputs of its frozen stages.

    The features are those of `ClassifierInputExtractor`, or of `StageClassifierInputExtractor` if `staged` is true.
    Nothing is stored if the outputs of `n_images` images need more than `max_bytes` in total, or if features computed
    from the stored outputs differ from those of a full forward pass. Hooks stay on the network until `close` is called.

    Raises:
        UserError: The network cannot continue from the outputs of `frozen` stages.
    """

    def __init__(
        self, network: nn.Module, image_size: Size, staged: bool, frozen: int, n_images: int = 0, max_bytes: float = 0
    ) -> None:
        super().__init__()
        self._network, self._n_images, self._max_bytes = network, n_images, max_bytes
        maps = last_stage_poolings(network, image_size) if staged else ()
        images = make_dummy_images(network, image_size).repeat(2, 1, 1, 1)
        self._hooks = ExitStack()
        try:
            self._stages = self._hooks.enter_context(closing(FrozenStages(network, frozen)))
            self._inputs = self._hooks.enter_context(closing(ClassifierInputExtractor(network)))
            with temporary_eval_mode(network), recorded_outputs(network, [stage.name for stage in maps]) as outputs:
                self._stages.activations(images)
            frozen_pool = StagePool(network, [stage for stage in maps if stage.name in outputs])
            self._frozen_pool = self._hooks.enter_context(closing(frozen_pool))
            trained_pool = StagePool(network, [stage for stage in maps if stage.name not in outputs])
            self._trained_pool = self._hooks.enter_context(closing(trained_pool))
            with temporary_eval_mode(network):
                self._resume(*self._frozen_outputs(images))
        except (UserError, RuntimeError) as problem:
            self.close()
            raise UserError(f"the network cannot continue after stage {frozen}: {problem}") from problem
        self._activations, self._pooled = torch.empty(0), torch.empty(0)
        self._is_storing, self._n_stored, self._seconds = max_bytes > 0, 0, 0.0

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of (B, C, H, W) images, and store the outputs of the frozen stages."""
        if not self._is_storing:
            return self._features_of(images)
        activations, pooled = self._frozen_outputs(images)
        start_time = time.monotonic()
        features = self._resume(activations, pooled)
        features[0, 0].item()  # waits until the device has finished
        self._seconds += time.monotonic() - start_time
        if not self._n_stored:
            self._is_storing = self._can_store(images[:1], activations[:1], pooled[:1])
            if not self._is_storing:
                return self._features_of(images)
            self._activations = torch.empty(self._n_images, *activations.shape[1:], dtype=torch.float16)
            self._pooled = torch.empty(self._n_images, pooled.shape[1])
        rows = slice(self._n_stored, self._n_stored + len(images))
        self._activations[rows], self._pooled[rows] = activations, pooled
        self._is_storing = bool(self._activations[rows].isfinite().all())  # values above 65,504 overflow in float16
        self._n_stored += len(images)
        return features

    def get_stored_outputs(self, speed: float) -> FrozenOutputs | None:
        """Return the stored outputs of all images; None if they were not stored.

        `speed` is the speed of the precision in which they were computed, relative to float32.
        """
        if not self._is_storing or not 0 < self._n_stored == self._n_images:
            return None
        return FrozenOutputs(self._activations, self._pooled, speed * self._seconds / self._n_images)

    @torch.inference_mode()
    def resume_all(self, outputs: FrozenOutputs, advance: Callable[[int, int], None] | None = None) -> Tensor:
        """Return the (N, D) float32 features of the network, computed from stored outputs, on the CPU."""
        device, features = next(self._network.parameters()).device, []
        with temporary_eval_mode(self._network):
            for start in range(0, len(outputs.activations), BATCH_SIZE):
                rows = slice(start, start + BATCH_SIZE)
                activations, pooled = outputs.activations[rows].to(device).float(), outputs.pooled[rows].to(device)
                features.append(self._resume(activations, pooled).cpu())
                if advance is not None:
                    advance(start + len(activations), len(outputs.activations))
        return torch.cat(features)

    def close(self) -> None:
        """Remove the hooks."""
        self._hooks.close()

    def _frozen_outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the first trained stage, and the pooled maps of the frozen stages."""
        activations = self._stages.activations(images)
        return activations, self._frozen_pool.join(images.new_empty(len(images), 0, dtype=torch.float32))

    def _features_of(self, images: Tensor) -> Tensor:
        last = self._inputs(images)
        return self._join(last, self._frozen_pool.join(last[:, :0]))

    def _resume(self, activations: Tensor, pooled: Tensor) -> Tensor:
        try:
            last = self._inputs(self._stages.resume_from(activations))
        finally:
            self._stages.forget_activations()
        return self._join(last, pooled)

    def _join(self, last: Tensor, frozen_maps: Tensor) -> Tensor:
        """Return the features in the order of `StagePool.join`: last features, all means, all standard deviations."""
        trained_maps = self._trained_pool.join(last)[:, last.shape[1] :]
        maps = [part for pair in zip(frozen_maps.chunk(2, 1), trained_maps.chunk(2, 1), strict=True) for part in pair]
        return torch.cat([last, *maps], 1)

    def _can_store(self, image: Tensor, activations: Tensor, pooled: Tensor) -> bool:
        """Return whether the outputs for all images fit in `max_bytes`, and reproduce the features of one image."""
        halved = activations.half()
        if halved.nbytes * self._n_images > self._max_bytes:
            return False
        expected, resumed = self._features_of(image), self._resume(halved.to(activations), pooled)
        return torch.allclose(resumed, expected, rtol=0, atol=TOLERANCE * float(expected.std()))
