"""Fine-tuning of pretrained backbones, by methods that preserve the features of pretrained weights.

The methods work for any objective with one backbone and can be combined:

- Layer-wise decay of the learning rate (BEiT, Bao et al., ICLR 2022): from the classifier down to the stem, the
  learning rate of each layer is `layer_decay` times the learning rate of the layer above.
- Freezing: the stem, the first stages or the whole backbone are not trained. Training with a frozen backbone is linear
  probing. In another variant, only norms, biases and the classifier are trained (BitFit, Ben Zaken et al., ACL 2022).
- Linear probing, then fine-tuning (Kumar et al., ICLR 2022): in the first epochs only the classifier is trained, so
  that its random initial weights do not disturb the backbone. Here, both phases are part of one run with a single
  schedule; in the paper, they are two runs. The learning rate of the backbone is warmed up over the first epoch in
  which the backbone is trained, since AdamW's moments are still empty.
- Low-rank adapters: LoRA (Hu et al., ICLR 2022) on all linear layers of attention, as in CLIP-LoRA (Zanella and Ben
  Ayed, 2024, arXiv:2405.18541). The change of each layer's weights is a product of two thin matrices, and is always
  merged into the weights: in training, gradients go to the adapters, and after every step the weights are updated by
  the change of the products. So the model that is evaluated, averaged and saved is a network without adapters.

Frozen modules are in evaluation mode, so that running statistics do not change and dropout is off. The whole backbone
can stay in evaluation mode while its parameters are trained, as in DHVT's code (Lu et al., NeurIPS 2022).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layers import classifier_parameters, first_stage_parameters, layer_ids, layer_lr_scales
from paucal.backbones.probe import model_name
from paucal.objectives.base import Objective
from paucal.types import GroupScale, GroupScales, Progress, UserError

Frozen = Literal["stem", "backbone", "weights"] | int | None

MAIN, BACKBONE = "main", "backbone"  # labels of parameter groups
BACKBONE_WARMUP_EPOCHS = 1  # epochs of warm-up of the backbone's learning rate after `freeze_epochs`
# Last part of the names of linear layers in attention modules, in timm's models.
ATTENTION_LAYERS = ("qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj", "out_proj", "proj")


@dataclass(frozen=True)
class FineTuning:
    """Options of fine-tuning; by default all layers have the same learning rate and nothing is frozen.

    Attributes:
        layer_decay: Factor by which the learning rate decreases from each layer to the layer below, in (0, 1]; None for
            equal rates.
        freeze: Part of the model that is frozen: "stem", "backbone" (all but the classifier), "weights" (all but norms,
            biases and the classifier), or the number of first stages (or blocks, if the model has no stages) that are
            frozen together with the stem. None to freeze nothing.
        freeze_epochs: Number of epochs at the beginning in which only the classifier is trained.
        eval_mode: Whether the whole model, including the classifier, stays in evaluation mode, so that batch norms use
            the running statistics of the initial weights, and dropout and stochastic depth are off.
        lora_rank: Rank of the low-rank adapters that are trained instead of the backbone's weights, together with the
            classifier; None for no adapters.
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
    """Applies `FineTuning` options to the timm model of an objective; the objective calls the methods of this class.

    Parameters that are frozen for the whole run get `requires_grad=False`, so that they are not in the optimizer and
    other processes do not wait for their gradients. Parameters that are frozen in the first epochs keep
    `requires_grad=True`, but their gradients are set to None, so that the optimizer skips these parameters without
    weight decay and without changing their moments.

    `prefix` is the prefix of the model's parameter names in the objective. `rate` is a factor for the learning rate of
    the whole model; None if the model has the same learning rate as the other parameters of the objective.
    """

    def __init__(
        self, model: nn.Module, options: FineTuning, prefix: str = "backbone.model.", rate: float | None = None
    ) -> None:
        self._model, self.options, self._prefix, self._rate = model, options, prefix, rate
        body_names = {name for name, _ in model.named_parameters()} - classifier_parameters(model)
        self._frozen = frozen_parameters(model, options.freeze if options.lora_rank is None else "backbone")
        for name in self._frozen:
            model.get_parameter(name).requires_grad_(False)
        # Names of the parameters that are frozen only in the first epochs.
        self._frozen_at_start = body_names - self._frozen if options.freeze_epochs else set()
        is_all_frozen = self._frozen == body_names
        self._eval_modules = list(
            model.modules() if options.eval_mode else frozen_modules(model, self._frozen, is_all_frozen)
        )
        self._modules_frozen_at_start = (
            list(frozen_modules(model, body_names, is_all_frozen=True)) if self._frozen_at_start else []
        )
        self._labels, self._scales = self._parameter_groups()

    def label(self, name: str) -> str:
        """Return the label of the parameter group that the objective's parameter `name` belongs to."""
        return self._labels.get(name, BACKBONE if self._rate is not None and name.startswith(self._prefix) else MAIN)

    def scales(self, progress: Progress) -> GroupScales:
        """Return the factors for the learning rate and weight decay of each parameter group at this step, by label."""
        factor = 1.0
        if self._frozen_at_start:  # 0 while the backbone is frozen, then rising to 1
            steps = progress.step - self.options.freeze_epochs * progress.steps_per_epoch
            warmup_steps = BACKBONE_WARMUP_EPOCHS * progress.steps_per_epoch
            factor = 0.0 if self.trains_classifier_only(progress) else min(1.0, (steps + 1) / warmup_steps)
        scales = {name: GroupScale(scale * factor, float(factor > 0)) for name, scale in self._scales.items()}
        if self._rate is None:
            return scales
        scales = {BACKBONE: GroupScale(), **scales}
        return {name: GroupScale(scale.lr * self._rate, scale.weight_decay) for name, scale in scales.items()}

    def before_step(self, progress: Progress) -> None:
        """Set the gradients of the parameters that are frozen at this step to None."""
        if self.trains_classifier_only(progress):
            for name in self._frozen_at_start:
                self._model.get_parameter(name).grad = None

    def set_modes(self, progress: Progress) -> None:
        """Put modules that are frozen at this step in evaluation mode; call this before each training forward pass."""
        for module in self._modules_frozen_at_start:
            module.training = not self.trains_classifier_only(progress)
        for module in self._eval_modules:
            module.training = False

    def trains_classifier_only(self, progress: Progress) -> bool:
        """Return whether this step is in the first `freeze_epochs` epochs, which train only the classifier."""
        return progress.step < self.options.freeze_epochs * progress.steps_per_epoch

    def _parameter_groups(self) -> tuple[dict[str, str], dict[str, float]]:
        """Return the group labels of parameters that have groups of their own, and the rate factors by group label."""
        decay, prefix, frozen_at_start = self.options.layer_decay, self._prefix, self._frozen_at_start
        if decay is None or decay == 1:
            return {prefix + name: BACKBONE for name in frozen_at_start}, {BACKBONE: 1.0} if frozen_at_start else {}
        labels, scales = {}, {}
        scale_by_name, classifier_names = layer_lr_scales(self._model, decay), classifier_parameters(self._model)
        for name, number in layer_ids(self._model).items():
            if name not in classifier_names and name not in self._frozen:
                labels[prefix + name] = f"layer {number}"
                scales[f"layer {number}"] = scale_by_name[name]
        return labels, scales


class TunedObjective(Objective):
    """An objective with one backbone; its `tuner` applies the fine-tuning options to the backbone."""

    tuner: BackboneTuner

    def parameter_group(self, name: str) -> str:
        """Return the label of the parameter's group, which names its layer if layers have different learning rates."""
        return self.tuner.label(name)

    def group_scales(self, progress: Progress) -> GroupScales:
        """Return the factors for learning rates and weight decays that follow from the fine-tuning options."""
        return self.tuner.scales(progress)

    def before_step(self, progress: Progress) -> None:
        """Set the gradients of the parameters that are frozen at this step to None."""
        self.tuner.before_step(progress)


class BackboneObjective(TunedObjective):
    """A method that trains one backbone, whose timm model is deployed without the method's heads."""

    def __init__(self, backbone: FeatureBackbone, tuning: FineTuning | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.tuner = BackboneTuner(backbone.model, tuning or FineTuning())

    def backbones(self) -> Sequence[FeatureBackbone]:
        """Return the backbone in a list."""
        return [self.backbone]

    def deployable(self) -> nn.Module:
        """Return the backbone's timm model."""
        return self.backbone.model


def frozen_parameters(model: nn.Module, freeze: Frozen) -> set[str]:
    """Return the names of a model's parameters that are frozen for the whole run; see `FineTuning.freeze`."""
    if freeze is None:
        return set()
    if freeze not in ("backbone", "weights"):
        return first_stage_parameters(model, 0 if freeze == "stem" else freeze)
    frozen = {name for name, _ in model.named_parameters()} - classifier_parameters(model)
    if freeze == "backbone":
        return frozen
    norms = {name for name, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    return {name for name in frozen if not name.endswith("bias") and name.rpartition(".")[0] not in norms}


def frozen_modules(model: nn.Module, frozen: set[str], is_all_frozen: bool, prefix: str = "") -> Iterator[nn.Module]:
    """Yield each module whose parameters are all in the set of names `frozen`, and its submodules.

    If `is_all_frozen`, all parameters except the classifier's are frozen. Modules with buffers but without parameters,
    such as batch norms without affine parameters, then count as frozen too. `prefix` is the prefix of the parameter
    names of `model` in `frozen`.
    """
    names = [prefix + name for name, _ in model.named_parameters()]
    if names and frozen.issuperset(names):
        yield from model.modules()
    elif names:
        for child, module in model.named_children():
            yield from frozen_modules(module, frozen, is_all_frozen, f"{prefix}{child}.")
    elif is_all_frozen and any(True for _ in model.buffers()):
        yield from model.modules()


def attention_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return a model's linear layers for queries, keys, values and attention output projections, by name."""
    layers = {}
    for name, module in model.named_modules():
        *parents, last = name.split(".")
        if isinstance(module, nn.Linear) and last in ATTENTION_LAYERS and any("attn" in parent for parent in parents):
            layers[name] = module
    return layers


class LowRankAdapters(nn.Module):
    """Low-rank adapters of a model's attention layers, added to the weights by hooks in each forward pass."""

    def __init__(self, objective: nn.Module, model: nn.Module, rank: int) -> None:
        super().__init__()
        self._layers = list(attention_layers(model).values())
        if not self._layers:
            raise UserError(
                f"--lora-rank adds adapters to attention layers, but {model_name(model)} has no attention layers: "
                "remove --lora-rank, or choose a transformer with --model."
            )
        down = [torch.empty(rank, layer.in_features) for layer in self._layers]
        for matrix in down:
            nn.init.kaiming_uniform_(matrix, a=5**0.5)
        self.down = nn.ParameterList(down)
        self.up = nn.ParameterList(torch.zeros(layer.out_features, rank) for layer in self._layers)
        self._weights: list[Tensor] = []
        self._merged_products: list[Tensor] = []
        objective.register_forward_pre_hook(self._attach_products)
        objective.register_forward_hook(self._restore_weights, always_call=True)

    def products(self) -> list[Tensor]:
        """Return the change of each attention layer's weights, one (out_features, in_features) tensor per layer."""
        return [up @ down for up, down in zip(self.up, self.down, strict=True)]

    def before_step(self, frozen: bool = False) -> None:
        """Store the products that are merged into the weights; if `frozen`, also drop the adapters' gradients."""
        if frozen:
            self.zero_grad()
        with torch.no_grad():
            self._merged_products = self.products()

    def after_step(self) -> None:
        """Replace the products that are merged into the weights by the new products."""
        with torch.no_grad():
            products = zip(self._layers, self.products(), self._merged_products, strict=True)
            for layer, new_product, old_product in products:
                layer.weight.add_(new_product - old_product)
        self._merged_products = []

    def _attach_products(self, *_: Any) -> None:
        self._weights = [layer.weight for layer in self._layers]
        for layer, weight, product in zip(self._layers, self._weights, self.products(), strict=True):
            # The difference is 0, but its gradient flows into the product and thus into the adapters.
            layer._parameters["weight"] = weight + (product - product.detach())  # type: ignore[assignment]

    def _restore_weights(self, *_: Any) -> None:
        for layer, weight in zip(self._layers, self._weights, strict=True):
            layer._parameters["weight"] = weight  # type: ignore[assignment]
        self._weights = []
