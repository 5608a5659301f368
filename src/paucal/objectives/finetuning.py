"""Fine-tuning of pretrained backbones: layer-wise learning rates, frozen layers, the classifier first.

Three ways to preserve what pretrained weights have learned, for any objective with one backbone; they can be combined.

- Layer-wise decay of the learning rate (BEiT, Bao et al., ICLR 2022): from the classifier down to the stem, each layer
  has `layer_decay` times the rate of the layer above.
- Freezing: the stem, the first stages or the whole backbone never change. With the whole backbone frozen, training
  is a linear probe. Or all weights are frozen except those of norms, biases and the classifier (BitFit, Ben Zaken et
  al., ACL 2022).
- Linear probe, then fine-tune (Kumar et al., ICLR 2022): for the first epochs only the classifier learns, so that
  its random initial weights do not disturb the backbone. We use a single schedule instead of the paper's two runs, and
  warm up the backbone's rate over its first epoch, since AdamW has no statistics of its gradients yet.

Frozen modules run in evaluation mode, so that running statistics are fixed and dropout is off. The whole backbone can
be kept in that mode while its parameters are trained, as in DHVT's code (Lu et al., NeurIPS 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from paucal.backbones.layers import classifier_parameters, first_stages, layer_ids, layer_scales, norms_and_biases
from paucal.objectives.base import Objective
from paucal.types import GroupScale, GroupScales, Progress

Frozen = Literal["stem", "backbone", "weights"] | int | None

MAIN, BACKBONE = "main", "backbone"  # labels of groups of parameters
THAW_EPOCHS = 1  # epochs during which the learning rate of an unfrozen backbone rises


@dataclass(frozen=True)
class FineTuning:
    """Options of fine-tuning; by default all layers have the same rate.

    Attributes:
        layer_decay: Factor on the learning rate from one layer to the one below it, in (0, 1]; None for none.
        freeze: Frozen part: "stem", "backbone" (all but the classifier), "weights" (all but norms, biases and the
            classifier), or a number of stages (blocks, where a model has no stages) that are frozen together with the
            stem.
        freeze_epochs: Epochs at the start in which only the classifier learns.
        eval_mode: Whether the whole backbone, its classifier included, stays in evaluation mode. Batch norms then
            divide by the statistics it started with, and neither dropout nor stochastic depth acts.
        lora_rank: Rank of low-rank adapters, which are trained together with the classifier instead of the weights;
            None for none.
    """

    layer_decay: float | None = None
    freeze: Frozen = None
    freeze_epochs: int = 0
    eval_mode: bool = False
    lora_rank: int | None = None

    def __post_init__(self) -> None:
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}")
        if self.freeze_epochs < 0:
            raise ValueError(f"freeze_epochs must be at least 0, got {self.freeze_epochs}")


class BackboneTuner:
    """Applies a `FineTuning` to the timm model of an objective; the objective calls the methods of this class.

    Parameters frozen for the whole run lose `requires_grad`, so the optimizer never sees them and no other process
    waits for their gradients. Parameters frozen for the first epochs keep it and have their gradients dropped: the
    optimizer skips parameters without gradient, including moments and weight decay.

    Args:
        model: timm model; its frozen parameters are marked at once.
        options: Options of fine-tuning.
        prefix: Prefix of the model's parameters in the objective.
        rate: Factor on the learning rate of the whole model, which then is a group of its own; None for no such group.
    """

    def __init__(
        self, model: nn.Module, options: FineTuning, prefix: str = "backbone.model.", rate: float | None = None
    ) -> None:
        self.options, self._prefix, self._rate = options, prefix, rate
        self._model = model
        body_names = {name for name, _ in model.named_parameters()} - classifier_parameters(model)
        self._frozen = frozen_parameters(model, options.freeze if options.lora_rank is None else "backbone")
        for name in self._frozen:
            model.get_parameter(name).requires_grad_(False)
        self._held = body_names - self._frozen if options.freeze_epochs else set()
        whole = self._frozen == body_names
        self._still = list(model.modules() if options.eval_mode else frozen_modules(model, self._frozen, whole))
        self._held_modules = list(frozen_modules(model, body_names, whole=True)) if self._held else []
        self._labels, self._scales = self._groups()

    def label(self, name: str) -> str:
        """Return the label of the group of an objective's parameter."""
        return self._labels.get(name, BACKBONE if self._rate is not None and name.startswith(self._prefix) else MAIN)

    def scales(self, progress: Progress) -> GroupScales:
        """Return the factors per label at this point of the run."""
        share = self._rate_factor(progress) if self._held else 1.0
        scales = {name: GroupScale(scale * share, float(share > 0)) for name, scale in self._scales.items()}
        if self._rate is None:
            return scales
        scales = {BACKBONE: GroupScale(), **scales}
        return {name: GroupScale(scale.lr * self._rate, scale.weight_decay) for name, scale in scales.items()}

    def before_step(self, progress: Progress) -> None:
        """Drop the gradients of the parameters that are frozen at this step."""
        if self.holds(progress):
            for name in self._held:
                self._model.get_parameter(name).grad = None

    def set_modes(self, progress: Progress) -> None:
        """Put the currently frozen modules in evaluation mode; call this before every training forward pass."""
        for module in self._held_modules:
            module.training = not self.holds(progress)
        for module in self._still:
            module.training = False

    def holds(self, progress: Progress) -> bool:
        """Return whether only the classifier learns at this step."""
        return progress.step < self.options.freeze_epochs * progress.steps_per_epoch

    def _rate_factor(self, progress: Progress) -> float:
        """Return the factor on the backbone's rate: 0 while it is frozen, then rising to 1."""
        if self.holds(progress):
            return 0.0
        since = progress.step - self.options.freeze_epochs * progress.steps_per_epoch
        return min(1.0, (since + 1) / (THAW_EPOCHS * progress.steps_per_epoch))

    def _groups(self) -> tuple[dict[str, str], dict[str, float]]:
        decay, prefix = self.options.layer_decay, self._prefix
        if decay is None or decay == 1:
            return {prefix + name: BACKBONE for name in self._held}, {BACKBONE: 1.0} if self._held else {}
        labels, scales = {}, {}
        scale_by_name, classifier_names = layer_scales(self._model, decay), classifier_parameters(self._model)
        for name, number in layer_ids(self._model).items():
            if name not in classifier_names and name not in self._frozen:
                labels[prefix + name] = f"layer {number}"
                scales[f"layer {number}"] = scale_by_name[name]
        return labels, scales


class TunedObjective(Objective):
    """An objective with one backbone, which `tuner` fine-tunes."""

    tuner: BackboneTuner

    def parameter_group(self, name: str) -> str:
        """Return the label of the backbone's layer if layers have their own rates."""
        return self.tuner.label(name)

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the factors on learning rates and weight decays from fine-tuning."""
        return self.tuner.scales(progress)

    def before_step(self, progress: Progress) -> None:
        """Drop the gradients of the parameters that the fine-tuning freezes at this step."""
        self.tuner.before_step(progress)


def frozen_parameters(model: nn.Module, freeze: Frozen) -> set[str]:
    """Return the names of the parameters that never change."""
    if freeze is None:
        return set()
    if freeze in ("backbone", "weights"):
        trained_names = norms_and_biases(model) if freeze == "weights" else set()
        return {name for name, _ in model.named_parameters()} - classifier_parameters(model) - trained_names
    return first_stages(model, 0 if freeze == "stem" else freeze)


def frozen_modules(model: nn.Module, frozen: set[str], whole: bool, prefix: str = "") -> Iterator[nn.Module]:
    """Yield each module whose parameters are all frozen, and its submodules.

    Args:
        model: Model to search.
        frozen: Names of frozen parameters.
        whole: Whether all but the classifier is frozen; then modules with statistics but without parameters are frozen
            too.
        prefix: Prefix of the names inside `model`.
    """
    names = [prefix + name for name, _ in model.named_parameters()]
    if names and frozen.issuperset(names):
        yield from model.modules()
    elif names:
        for child, module in model.named_children():
            yield from frozen_modules(module, frozen, whole, f"{prefix}{child}.")
    elif whole and any(True for _ in model.buffers()):
        yield from model.modules()
