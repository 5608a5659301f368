"""How carefully a started backbone is trained, from the settings."""

from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective
from paucal.objectives.finetuning import BackboneTuner, FineTuning
from paucal.settings.options import flag
from paucal.types import UserError


def fine_tuning(settings: TrainSettings) -> FineTuning:
    """Return layer-wise decay and freezing.

    Raises:
        UserError: the backbone would be frozen both for the whole run and for some of it, or for all of its epochs, or
            its running statistics would be kept although they mean nothing yet.
    """
    epochs = settings.epochs  # of a run whose length is still open nothing can be said
    if settings.freeze == "backbone" and settings.freeze_epochs:
        raise UserError("--freeze backbone lasts for the whole run: leave --freeze-epochs out, or --freeze.")
    if settings.freeze_epochs and epochs is not None and settings.freeze_epochs >= epochs:
        raise UserError(
            f"--freeze-epochs {settings.freeze_epochs} leaves no epoch of {epochs} to the backbone: give fewer, more "
            " --epochs, or --freeze backbone."
        )
    if settings.eval_mode and settings.init is None:
        raise UserError(
            "--eval-mode keeps the running statistics of what the run starts from, and there is nothing to start from: "
            "give --init, or leave it out."
        )
    return FineTuning(settings.layer_decay or 1.0, settings.freeze, settings.freeze_epochs, settings.eval_mode)


def check_tuning(settings: TrainSettings, objective: Objective) -> list[str]:
    """Return remarks on what is frozen, and on fine-tuning that will run but may disappoint.

    Raises:
        UserError: layers shall be slowed or frozen and the objective of this method does not know how.
    """
    asked = [name for name in ("layer_decay", "freeze", "freeze_epochs") if getattr(settings, name) is not None]
    asked = [name for name in asked if name != "freeze_epochs" or settings.freeze_epochs]
    asked += ["eval_mode"] if settings.eval_mode else []
    if asked and not isinstance(getattr(objective, "tuner", None), BackboneTuner):
        raise UserError(f"{flag(asked[0])} is not for --method {settings.method}: leave it out.")
    remarks = []
    if settings.freeze is not None:
        sizes = [
            (p.numel(), p.requires_grad) for backbone in objective.backbones() for p in backbone.model.parameters()
        ]
        frozen, total = sum(size for size, trained in sizes if not trained), sum(size for size, _ in sizes)
        remarks.append(f"frozen for the whole run: {frozen / 1e6:.2f} of {total / 1e6:.2f} M parameters")
    if settings.init is None and (settings.freeze is not None or settings.freeze_epochs):
        remarks.append("nothing was given to start from (--init): what is frozen has random weights")
    if settings.freeze == "backbone" and (settings.method != "supervised" or settings.add):
        remarks.append("with --freeze backbone an extra loss trains its own head only; --method supervised is faster")
    return remarks
