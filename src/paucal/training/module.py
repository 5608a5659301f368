"""The LightningModule that trains any objective, with the optimizers and their parameter groups."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from lightning.pytorch import LightningModule
from timm.optim.lars import Lars
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader

from paucal.data.randomness import derive_seed
from paucal.objectives.base import Objective
from paucal.training.meters import Meters
from paucal.training.plan import Optimization, Plan
from paucal.training.sharding import shard, total_norm
from paucal.types import Batch, GroupScale, LossTerms, Progress

log = logging.getLogger("paucal")
NORM_CLASS = re.compile(r"norm", re.IGNORECASE)  # found in the class names of normalisation layers
# Learned tokens and position tables, by their parameter names in timm and in the papers' code
TOKEN_OR_TABLE = re.compile(
    r"(^|\.|_)(cls_token|dist_token|reg_token|mask_token|head_token|pos_embed\w*|absolute_pos_embed|pos_emb"
    r"|position_embedding\w*|relative_position_bias_table|rel_pos\w*|attention_biases)$"
)
TRUST_COEFFICIENT = 1e-3  # trust coefficient of LARS, as in EsViT's code
DEVICES_IGNORING_FOUND_INF = ("mps",)  # types of device on which torch's fused AdamW ignores `found_inf`


class TrainingModule(LightningModule):
    """Trains an objective: seeds each step, sums the losses, clips gradients and sets learning rates.

    For Lightning, the whole run is one epoch. paucal computes epochs from steps, so that a run can be stopped and
    resumed within an epoch, and data loader workers are not restarted between epochs.

    Steps do not wait for the device. Losses are summed on the device and read at the end of an epoch. If a gradient is
    not finite, the optimizer itself skips the step (`found_inf`). All ranks skip the same steps, because the gradients
    were already averaged over the ranks, or their norm was summed over all shards. For an optimizer
    that does not support `found_inf`, this module waits for the device at every step, and skips the step if needed.
    """

    def __init__(
        self, objective: Objective, optimization: Optimization, plan: Plan, make_loader: Callable[[], DataLoader]
    ) -> None:
        super().__init__()
        self.objective = objective
        self.optimization = optimization
        self.plan = plan
        self.make_loader = make_loader
        self.meters = Meters()
        self.batch_ids = torch.zeros(0, dtype=torch.int64)

    def progress(self, micro_step: int = 0) -> Progress:
        """Return the progress of the run, whose step is the position in the schedules (see `Plan.position`)."""
        position = int(self.plan.position(self.trainer.global_step))
        return Progress(position, self.plan.total_steps, self.plan.steps_per_epoch, micro_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the total loss of a batch."""
        plan = self.plan
        # Random numbers depend only on (seed, forward pass, rank), so that a resumed run repeats them.
        seed = derive_seed(plan.seed, batch_idx, self.global_rank)
        if self.device.type == "cpu":
            # `torch.manual_seed` is slow here: it formats a stack trace for each type of device that is not available.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        if plan.mixing is not None and self.objective.data_request.mixing:
            batch = plan.mixing.mix(batch, plan.n_classes)
        terms: LossTerms = self.objective(batch, self.progress(batch_idx))
        total = terms.total
        self.meters.add(terms, total)
        return total

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch to the device asynchronously, which Lightning does only for tensors."""
        self.batch_ids = batch.ids  # in main memory, so that the ledger can read the ids without waiting for the device
        return batch.to(device, non_blocking=True)

    def train_dataloader(self) -> DataLoader:
        """Build the data loader of this process."""
        return self.make_loader()

    @property
    def mesh(self) -> DeviceMesh | None:
        """The device mesh over which the objective is sharded; None if each process has a full copy."""
        return None if self.device_mesh is None else self.device_mesh["data_parallel"]

    def configure_model(self) -> None:
        """Shard the objective if the strategy is "fsdp"."""
        if self.mesh is not None:
            shard(self.objective, self.objective.shardable(), self.mesh)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimizer for the objective's parameter groups."""
        objective = self.objective
        groups = parameter_groups(objective, objective.parameter_group, objective.decays_tables)
        return build_optimizer(groups, self.optimization)

    def on_train_start(self) -> None:
        """Copy restored optimizer states into the memory layout of their weights, which the fused AdamW requires."""
        for optimizer in self.trainer.optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if value.shape == parameter.shape and value.stride() != parameter.stride():
                        state[name] = torch.empty_like(parameter).copy_(value)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set learning rates, call the objective's hook, clip gradients, and skip steps with a non-finite norm."""
        progress = self.progress()
        self._set_rates(optimizer, progress)
        if progress.step == 0:
            self._check_unused_parameters()
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        supports_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)
        if scaler is not None and supports_scaling:
            # Lightning lets a fused optimizer unscale the gradients, but only after gradient clipping.
            scaler.unscale_(optimizer)
        self.objective.before_step(progress)  # may clip gradients by its own rule, or set gradients to None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = clip_gradients(parameters, self.optimization.clip)
        found_inf = (~torch.isfinite(norm)).float()
        # SGD and LARS do not skip steps. torch's fused SGD does, but has an undefined momentum if the first step is
        # skipped, and does not support parameters that get gradients later than others, such as EsViT's prototypes.
        if supports_scaling and norm.device.type not in DEVICES_IGNORING_FOUND_INF:
            if scaler is None:  # a scaler sets `found_inf` itself
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        elif bool(found_inf):
            for parameter in parameters:
                parameter.grad = None
        self.meters.add_step(norm, found_inf)

    def _check_unused_parameters(self) -> None:
        """Warn of trainable parameters without a gradient; with several processes, which would hang, raise an error."""
        unused = [name for name, p in self.objective.named_parameters() if p.requires_grad and p.grad is None]
        if not unused:
            return
        names = ", ".join(unused[:3])
        text = f"no gradient reaches {len(unused)} trainable parameters ({names}, ...), which therefore do not change"
        if self.trainer.world_size > 1:
            raise RuntimeError(f"{text}; with several processes the objective must freeze these parameters.")
        log.warning(text)

    def configure_gradient_clipping(self, *args, **kwargs) -> None:
        """Do nothing, since `on_before_optimizer_step` clips gradients."""

    def _set_rates(self, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        rate = self.optimization.schedule(self.plan.position(self.trainer.global_step))
        scales = self.objective.group_scales(progress)
        for group in optimizer.param_groups:
            scale = scales.get(group["label"], GroupScale())
            group["lr"] = rate * scale.lr
            group["weight_decay"] = self.optimization.weight_decay * scale.weight_decay if group["decayed"] else 0.0
        self.meters.rate = rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Limit the global L2 norm of gradients to `max_norm` (None or 0: no limit); return the norm before clipping."""
    updated_parameters = [p for p in parameters if p.grad is not None]
    norm = total_norm([p.grad for p in updated_parameters if p.grad is not None])
    if max_norm and updated_parameters:
        torch.nn.utils.clip_grads_with_norm_(updated_parameters, max_norm, norm)
    return norm


def parameter_groups(
    module: nn.Module, label: Callable[[str], str] = lambda name: "main", decays_tables: bool = False
) -> list[dict[str, Any]]:
    """Group trainable parameters by label (from the parameter's name) and by whether they get weight decay.

    No weight decay applies to norms of any shape, biases, other parameters with at most one dimension, class and
    position tokens, relative-bias tables, and the names in a submodule's `no_weight_decay()`. (The published DrLoc code
    also decays the 4-D norms of its CvT and the tokens of its ViT and T2T; EsViT's code decays all tokens and tables.)
    With `decays_tables`, only biases and parameters with at most one dimension are not decayed.

    Return optimizer groups with the keys `params`, `names`, `label` and `decayed`, in a deterministic order.
    """
    vector_names = (name for name, p in module.named_parameters() if p.ndim <= 1 or name.endswith(".bias"))
    undecayed = set(vector_names if decays_tables else undecayed_parameters(module))
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        key = (label(name), name not in undecayed)
        group = groups.setdefault(key, {"params": [], "names": [], "label": key[0], "decayed": key[1]})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def undecayed_parameters(module: nn.Module) -> Iterator[str]:
    """Yield the full names of the parameters that get no weight decay."""
    patterns: list[str] = []  # names, or patterns of names, that submodules list, as in timm
    for prefix, parent in module.named_modules():
        list_names = getattr(parent, "no_weight_decay", None)
        names: Any = list_names() if callable(list_names) else ()
        patterns += [f"{prefix}.{name}" if prefix else name for name in names]
    for prefix, parent in module.named_modules():
        is_norm = NORM_CLASS.search(type(parent).__name__) is not None
        for local_name, parameter in parent.named_parameters(recurse=False):
            name = f"{prefix}.{local_name}" if prefix else local_name
            is_vector_or_bias = parameter.ndim <= 1 or local_name.endswith("bias")
            is_excluded = any(fnmatch(name, pattern) for pattern in patterns)
            if is_norm or is_vector_or_bias or TOKEN_OR_TABLE.search(name) or is_excluded:
                yield name


def build_optimizer(groups: Sequence[dict[str, Any]], settings: Optimization) -> Optimizer:
    """Return the optimizer of a run; the learning rate and weight decay of each group are set before every step.

    SGD and LARS have momentum, and their weight decay is added to the gradient, as in EsViT's code. LARS (You et al.
    2017) scales the update of each parameter by the parameter's L2 norm, except for parameters without weight decay,
    such as norms and biases.
    """
    if settings.optimizer == "sgd":
        return SGD(list(groups), lr=0.0, momentum=settings.momentum)
    if settings.optimizer == "lars":
        # Without "always_adapt", timm's LARS would not scale the updates while the weight decay is 0.
        lars_groups = [{**group, "always_adapt": group["decayed"]} for group in groups]
        # Typed as Any, since timm's defaults make type checkers expect integers.
        lars_options: Any = {"momentum": settings.momentum, "trust_coeff": TRUST_COEFFICIENT}
        return Lars(lars_groups, lr=0.0, **lars_options)
    # The fused version supports `found_inf`, so it skips non-finite steps itself.
    return AdamW(list(groups), lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)
