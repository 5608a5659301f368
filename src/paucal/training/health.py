"""Watching for NaN and infinite losses."""

import logging
from typing import Any

from lightning.pytorch import Callback, Trainer

from paucal.wording import was

log = logging.getLogger("paucal")


class FiniteWatch(Callback):
    """Checks at intervals whether steps were skipped, names the losses concerned, and stops a hopeless run.

    A run is hopeless where all of those steps were skipped (of a shorter run, all of its steps): a few at the end,
    after the newest look, are no such sign. It is ended by whoever keeps its records, once they are kept.

    Args:
        every: Steps between two checks.

    Attributes:
        hopeless: Message that ends the run; None if it may continue.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.hopeless: str | None = None
        self._seen = 0.0  # skipped steps at the newest check
        self._looked = 0  # step of that check

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"seen": self._seen, "looked": self._looked}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what a checkpoint stored."""
        self._seen, self._looked = state_dict["seen"], state_dict["looked"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the number of skipped steps, which waits for the device."""
        step, plan = trainer.global_step, pl_module.plan
        due = step % self.every == 0 or step >= plan.total_steps
        if not due or (batch_idx + 1) % plan.accumulate:
            return
        skipped = float(pl_module.meters.skipped)
        new, self._seen = skipped - self._seen, skipped
        steps, self._looked = step - self._looked, step
        if new <= 0:
            return
        names = ", ".join(repr(name) for name in pl_module.meters.culprits()) or "none; a gradient overflowed"
        window = "the last step" if steps == 1 else f"the last {steps} steps"
        if new >= steps >= min(self.every, plan.total_steps):
            self.hopeless = (
                f"{window} {'was' if steps == 1 else 'were all'} skipped because "
                "the loss or its gradient was not finite "
                f"(losses concerned: {names}): lower --lr (now {pl_module.meters.rate:.2g}), "
                "or use --precision 32-true. The run folder keeps the weights of before."
            )
            return
        what = f"{window} was" if steps == 1 else f"{new:.0f} of {window} {was(int(new))}"
        log.warning("%s skipped: not finite (losses concerned: %s)", what, names)
