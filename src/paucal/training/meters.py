"""Running means of losses and health metrics on the device, and a check for NaN and infinite losses.

Each process sums over its own images. The sums are exchanged only when metrics are read or a checkpoint is saved.
"""

import logging
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from paucal.types import LossTerms
from paucal.wording import was_or_were

CHECK_STEPS = 50  # number of steps between two checks for skipped steps
log = logging.getLogger("paucal")


class Meters:
    """Sums of metrics over the steps since the last reset, on the device; only reading waits for the device."""

    def __init__(self) -> None:
        self.rate = 0.0  # learning rate of the newest step
        self.skipped: Tensor | float = 0.0  # number of steps of the whole run with a non-finite gradient
        self.nonfinite: dict[str, Tensor] = {}  # number of forward passes with a non-finite loss, by name of the loss
        self.reset()

    def reset(self) -> None:
        """Reset the sums."""
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}

    def add(self, terms: LossTerms, total: Tensor) -> None:
        """Add the losses of a forward pass; non-finite losses are counted but not averaged."""
        for name, value in {"loss": total, **terms.values}.items():
            value = value.detach().float()
            self._add_finite(f"train_{name}", value)
            self.nonfinite[name] = (~torch.isfinite(value)).float() + self.nonfinite.get(name, 0.0)
        self.weights = dict(terms.weights)

    def add_step(self, norm: Tensor, skipped: Tensor) -> None:
        """Add the gradient's L2 norm at an optimizer step, and `skipped`: 1 if the step was skipped, else 0."""
        self._add_finite("gradient_norm", norm.detach().float())
        self._add_finite("skipped_steps", skipped)
        self.skipped = skipped + self.skipped

    def add_diagnostics(self, values: dict[str, Tensor]) -> None:
        """Add the objective's health metrics."""
        for name, value in values.items():
            self._add_finite(name, value.detach().float())

    def read(self) -> dict[str, float]:
        """Return the mean of each metric over the steps since the last reset and over all processes.

        The result also has the number of skipped steps, the loss weights and the learning rate. A metric without a
        finite value is NaN. Every process must call this method, which waits for the device.
        """
        if not self.sums:
            return {}
        sums, counts = _joint_means(self.sums), _joint_means(self.counts)
        counts["skipped_steps"] = torch.ones_like(next(iter(counts.values())))
        values = torch.stack([sums[name] / counts[name] for name in sums]).tolist()
        means = dict(zip(sums, values, strict=True))
        return {**means, **{f"weight_{n}": w for n, w in self.weights.items()}, "lr": self.rate}

    def _add_finite(self, name: str, value: Tensor) -> None:
        finite = torch.isfinite(value)
        self.sums[name] = torch.where(finite, value, torch.zeros_like(value)) + self.sums.get(name, 0.0)
        self.counts[name] = finite.float() + self.counts.get(name, 0.0)

    def newest_mean(self, name: str) -> float:
        """Return this process's mean of a metric since the last reset; NaN if the metric has no value yet."""
        return float(self.sums[name] / self.counts[name]) if name in self.sums else float("nan")

    def nonfinite_losses(self) -> list[str]:
        """Return the names of losses that have been NaN or infinite, on any process; every process must call this."""
        return [name for name, count in _joint_means(self.nonfinite).items() if name != "loss" and float(count) > 0]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which may be saved within an epoch; every process must call this.

        The sums are averaged over the processes, since every process resumes from the same checkpoint.
        """
        return {"sums": _joint_means(self.sums), "counts": _joint_means(self.counts), "skipped": float(self.skipped)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the state of a checkpoint."""
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}
        self.counts = {name: value.to(device) for name, value in state["counts"].items()}
        self.skipped = state["skipped"]


def _joint_means(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the means over all processes, in one collective call."""
    if not values or not (dist.is_available() and dist.is_initialized()):
        return dict(values)
    joint = torch.stack(list(values.values()))
    dist.all_reduce(joint)
    return dict(zip(values, joint / dist.get_world_size(), strict=True))


class SkippedStepCheck(Callback):
    """Checks every `CHECK_STEPS` steps whether steps were skipped, and warns with the names of the non-finite losses.

    If all `CHECK_STEPS` steps since the last check were skipped, or all steps of a shorter run, `RunKeeper` saves a
    checkpoint and ends the run with `stop_message`.
    """

    def __init__(self) -> None:
        self.stop_message: str | None = None  # message with which the run must end; None if it may go on
        self._n_skipped = 0.0  # number of skipped steps at the last check
        self._checked_step = 0  # step of the last check

    @property
    def state_key(self) -> str:
        """The key of this state in a checkpoint: the earlier name of this class, so that stored runs can be resumed."""
        return "FiniteWatch"

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"seen": self._n_skipped, "looked": self._checked_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._n_skipped, self._checked_step = state_dict["seen"], state_dict["looked"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the number of skipped steps; this waits for the device."""
        step, plan = trainer.global_step, pl_module.plan
        is_due = step % CHECK_STEPS == 0 or step >= plan.corrected_total_steps
        if not is_due or (batch_idx + 1) % plan.accumulate:
            return
        skipped = float(pl_module.meters.skipped)
        n_new, self._n_skipped = skipped - self._n_skipped, skipped
        steps, self._checked_step = step - self._checked_step, step
        if n_new <= 0:
            return
        names = ", ".join(repr(name) for name in pl_module.meters.nonfinite_losses()) or "none; a gradient overflowed"
        window = "the last step" if steps == 1 else f"the last {steps} steps"
        if n_new >= steps >= min(CHECK_STEPS, plan.corrected_total_steps):
            self.stop_message = (
                f"{window} {'was' if steps == 1 else 'were all'} skipped because the loss or its gradient was not "
                f"finite (non-finite losses: {names}): lower --lr (now {pl_module.meters.rate:.2g}), or use "
                "--precision 32-true. The run folder still contains the earlier weights."
            )
            return
        subject = f"{window} was" if steps == 1 else f"{n_new:.0f} of {window} {was_or_were(int(n_new))}"
        log.warning(
            "%s skipped because the loss or its gradient was not finite (non-finite losses: %s)", subject, names
        )
