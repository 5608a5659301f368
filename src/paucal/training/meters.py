"""Running means of losses and health metrics on the device, and a watch for NaN and infinite losses.

Each process measures its own images. Only readings and saved states are exchanged between processes.
"""

import logging
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from paucal.types import LossTerms
from paucal.wording import was

CHECK_EVERY = 50  # steps between two checks for skipped steps
log = logging.getLogger("paucal")


class Meters:
    """Sums over the steps since the last reset; only reading them waits for the device.

    Attributes:
        rate: Learning rate of the newest step.
        skipped: Steps of the whole run that were skipped because a gradient was not finite.
        nonfinite: Forward passes of the whole run in which each loss was not finite.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self.skipped: Tensor | float = 0.0
        self.nonfinite: dict[str, Tensor] = {}
        self.reset()

    def reset(self) -> None:
        """Reset the sums."""
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}

    def add(self, terms: LossTerms, total: Tensor) -> None:
        """Add the losses of a forward pass; non-finite ones are counted but not averaged."""
        for name, value in {"loss": total, **terms.values}.items():
            value = value.detach().float()
            self._add_finite(f"train_{name}", value)
            self.nonfinite[name] = (~torch.isfinite(value)).float() + self.nonfinite.get(name, 0.0)
        self.weights = dict(terms.weights)

    def add_step(self, norm: Tensor, skipped: Tensor) -> None:
        """Add an optimizer step: the gradient's L2 norm, and 1 if the step was skipped, else 0."""
        self._add_finite("gradient_norm", norm.detach().float())
        self._add_finite("skipped_steps", skipped)
        self.skipped = skipped + self.skipped

    def add_diagnostics(self, values: dict[str, Tensor]) -> None:
        """Add the objective's health metrics."""
        for name, value in values.items():
            self._add_finite(name, value.detach().float())

    def read(self) -> dict[str, float]:
        """Return means since the last reset, but the number of skipped steps, over all processes.

        Every process must call it. It waits for the device once. A mean without any finite value is NaN.
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
        """Return this process's mean of a value since the last reset; NaN if there is none yet."""
        return float(self.sums[name] / self.counts[name]) if name in self.sums else float("nan")

    def culprits(self) -> list[str]:
        """Return the names of losses that were ever not finite, in any process; every process must call this."""
        return [name for name, count in _joint_means(self.nonfinite).items() if name != "loss" and float(count) > 0]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint in the middle of an epoch stores; every process must call this.

        It is the mean over the processes, since each resumes with it.
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


class FiniteWatch(Callback):
    """Checks at intervals whether steps were skipped, names the losses concerned, and stops a hopeless run.

    A run is hopeless if all steps since the last check were skipped, or all steps of a shorter run. `RunKeeper` then
    writes its records and ends it.

    Attributes:
        hopeless: Message that ends the run; None if it may continue.
    """

    def __init__(self) -> None:
        self.hopeless: str | None = None
        self._seen = 0.0  # skipped steps at the newest check
        self._looked = 0  # step of that check

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"seen": self._seen, "looked": self._looked}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._seen, self._looked = state_dict["seen"], state_dict["looked"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the number of skipped steps; this waits for the device."""
        step, plan = trainer.global_step, pl_module.plan
        is_due = step % CHECK_EVERY == 0 or step >= plan.last_step
        if not is_due or (batch_idx + 1) % plan.accumulate:
            return
        skipped = float(pl_module.meters.skipped)
        n_new, self._seen = skipped - self._seen, skipped
        steps, self._looked = step - self._looked, step
        if n_new <= 0:
            return
        names = ", ".join(repr(name) for name in pl_module.meters.culprits()) or "none; a gradient overflowed"
        window = "the last step" if steps == 1 else f"the last {steps} steps"
        if n_new >= steps >= min(CHECK_EVERY, plan.last_step):
            self.hopeless = (
                f"{window} {'was' if steps == 1 else 'were all'} skipped because the loss or its gradient was not "
                f"finite (losses concerned: {names}): lower --lr (now {pl_module.meters.rate:.2g}), or use "
                "--precision 32-true. The run folder keeps the earlier weights."
            )
            return
        subject = f"{window} was" if steps == 1 else f"{n_new:.0f} of {window} {was(int(n_new))}"
        log.warning("%s skipped: not finite (losses concerned: %s)", subject, names)
