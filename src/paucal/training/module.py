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
    """Runs an objective: seeds each step, sums its losses, clips, schedules and steps.

    For Lightning the whole run is one epoch. Epochs are counted from steps, so that a run can be stopped and resumed
    within an epoch, and worker processes are never restarted between epochs.

    Nothing in a step waits for the device: losses are summed there and read at the end of an epoch, and a
    non-finite gradient makes the optimizer skip the step by itself (`found_inf`), on all ranks alike because the
    gradients were already averaged over them, or their norm was summed over all shards. For an optimizer without
    `found_inf`, this module skips the step, which waits for the device.
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
        """Return the position of the run in its schedules, see `Plan.position`."""
        position = int(self.plan.position(self.trainer.global_step))
        return Progress(position, self.plan.total_steps, self.plan.steps_per_epoch, micro_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the total loss of a batch."""
        plan = self.plan
        # Random numbers depend only on (seed, step, rank), so that a resumed run repeats them.
        # `torch.manual_seed` formats the stack for each kind of device that is absent.
        generators = torch.default_generator if self.device.type == "cpu" else torch
        generators.manual_seed(derive_seed(plan.seed, batch_idx, self.global_rank))
        if plan.mixing is not None and self.objective.data_request.mixing:
            batch = plan.mixing.mix(batch, plan.n_classes)
        terms: LossTerms = self.objective(batch, self.progress(batch_idx))
        total = terms.total
        self.meters.add(terms, total)
        return total

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch to the device asynchronously, which Lightning does only for tensors."""
        self.batch_ids = batch.ids  # still in main memory, so that reading them does not wait for the device
        return batch.to(device, non_blocking=True)

    def train_dataloader(self) -> DataLoader:
        """Build the loader of this process."""
        return self.make_loader()

    @property
    def mesh(self) -> DeviceMesh | None:
        """The device mesh over which the objective is sharded; None if each process has all of it."""
        return None if self.device_mesh is None else self.device_mesh["data_parallel"]

    def configure_model(self) -> None:
        """Shard the objective if the strategy asks for it."""
        if self.mesh is not None:
            shard(self.objective, self.objective.shardable(), self.mesh)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimizer over the objective's parameter groups."""
        objective = self.objective
        groups = parameter_groups(objective, objective.parameter_group, objective.decays_tables)
        return build_optimizer(groups, self.optimization)

    def on_train_start(self) -> None:
        """Give restored optimizer states the memory layout of the weights, which the fused AdamW assumes."""
        for optimizer in self.trainer.optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if value.shape == parameter.shape and value.stride() != parameter.stride():
                        state[name] = torch.empty_like(parameter).copy_(value)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set learning rates, call the objective's hook, clip, and mark a non-finite step."""
        progress = self.progress()
        self._set_rates(optimizer, progress)
        if progress.step == 0:
            self._notice_unused()
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves unscaling to a fused optimizer, which would do it after the clipping.
            scaler.unscale_(optimizer)
        self.objective.before_step(progress)  # may clip differently, or remove gradients
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = clip_gradients(parameters, self.optimization.clip)
        found_inf = (~torch.isfinite(norm)).float()
        if supports_found_inf(optimizer, norm.device):
            if scaler is None:  # a scaler sets it
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        elif bool(found_inf):
            for parameter in parameters:
                parameter.grad = None
        self.meters.add_step(norm, found_inf)

    def _notice_unused(self) -> None:
        """Warn of trainable parameters without a gradient, which the objective should have frozen.

        Raises:
            RuntimeError: There are several processes, which would wait for these gradients at the next step.
        """
        unused = [name for name, p in self.objective.named_parameters() if p.requires_grad and p.grad is None]
        if not unused:
            return
        names = ", ".join(unused[:3])
        text = f"no gradient reaches {len(unused)} trainable parameters ({names}, ...): they do not change"
        if self.trainer.world_size > 1:
            raise RuntimeError(f"{text}; on several processes the objective must freeze them.")
        log.warning(text)

    def configure_gradient_clipping(self, *args, **kwargs) -> None:
        """Do nothing, since `on_before_optimizer_step` clips."""

    def _set_rates(self, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        rate = self.optimization.schedule(self.plan.position(self.trainer.global_step))
        scales = self.objective.group_scales(progress)
        for group in optimizer.param_groups:
            scale = scales.get(group["label"], GroupScale())
            group["lr"] = rate * scale.lr
            group["weight_decay"] = self.optimization.weight_decay * scale.weight_decay if group["decayed"] else 0.0
        self.meters.rate = rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale gradients down to a global L2 norm of `max_norm`, if any; return the norm before that, on the device."""
    with_gradient = [p for p in parameters if p.grad is not None]
    norm = total_norm([p.grad for p in with_gradient if p.grad is not None])
    if max_norm and with_gradient:
        torch.nn.utils.clip_grads_with_norm_(with_gradient, max_norm, norm)
    return norm
