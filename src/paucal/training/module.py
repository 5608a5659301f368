"""The LightningModule that trains any objective."""

import logging
from collections.abc import Callable, Iterable

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

from paucal.data.randomness import derive_seed
from paucal.objectives.base import Objective
from paucal.training.meters import Meters
from paucal.training.optimizers import build_optimizer, parameter_groups, supports_found_inf
from paucal.training.plan import Optimization, Plan
from paucal.training.sharding import shard, total_norm
from paucal.types import Batch, GroupScale, LossTerms, Progress

log = logging.getLogger("paucal")


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
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning lets a fused optimizer unscale the gradients, but only after gradient clipping.
            scaler.unscale_(optimizer)
        self.objective.before_step(progress)  # may clip gradients by its own rule, or set gradients to None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = clip_gradients(parameters, self.optimization.clip)
        found_inf = (~torch.isfinite(norm)).float()
        if supports_found_inf(optimizer, norm.device):
            if scaler is None:  # a scaler sets `found_inf` itself
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        elif bool(found_inf):
            for parameter in parameters:
                parameter.grad = None
        self.meters.add_step(norm, found_inf)

    def _check_unused_parameters(self) -> None:
        """Warn of trainable parameters without a gradient, which the objective should have frozen.

        Raises:
            RuntimeError: There are such parameters and several processes, which would wait for the gradients forever.
        """
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
    """Clip gradients to a global L2 norm of at most `max_norm`; None or 0 disables clipping.

    Returns:
        The norm before clipping, a scalar on the device.
    """
    updated_parameters = [p for p in parameters if p.grad is not None]
    norm = total_norm([p.grad for p in updated_parameters if p.grad is not None])
    if max_norm and updated_parameters:
        torch.nn.utils.clip_grads_with_norm_(updated_parameters, max_norm, norm)
    return norm
