"""Fine-tuning options from the settings: layer decay, freezing and evaluation mode."""

from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective
from paucal.objectives.finetuning import BackboneTuner, FineTuning
from paucal.settings.options import flag
from paucal.types import UserError


def fine_tuning(settings: TrainSettings) -> FineTuning:
    """Return the fine-tuning options.

    Raises:
        UserError: The backbone would be frozen twice or for all epochs, or the running statistics of random weights
            would be kept.
    """
    epochs = settings.epochs  # None while the length is open
    if settings.freeze == "backbone" and settings.freeze_epochs:
        raise UserError("--freeze backbone lasts for the whole run: leave --freeze-epochs out, or --freeze.")
    if settings.freeze_epochs and epochs is not None and settings.freeze_epochs >= epochs:
        raise UserError(
            f"--freeze-epochs {settings.freeze_epochs} leaves no epoch of {epochs} to the backbone: give fewer, more "
            "--epochs, or --freeze backbone."
        )
    if settings.eval_mode and settings.init is None:
        raise UserError(
            "--eval-mode keeps the running statistics of pretrained weights, and there are none: "
            "give --init, or leave it out."
        )
    return FineTuning(settings.layer_decay or 1.0, settings.freeze, settings.freeze_epochs, settings.eval_mode)


def check_tuning(settings: TrainSettings, objective: Objective) -> list[str]:
    """Return remarks on frozen layers, and on fine-tuning that may give poor results.

    Raises:
        UserError: The method does not support these options.
    """
    asked = [name for name in ("layer_decay", "freeze", "freeze_epochs") if getattr(settings, name) is not None]
    asked = [name for name in asked if name != "freeze_epochs" or settings.freeze_epochs]
    asked += ["eval_mode"] if settings.eval_mode else []
    if asked and not isinstance(getattr(objective, "tuner", None), BackboneTuner):
        raise UserError(f"{flag(asked[0])} is not supported for --method {settings.method}: leave it out.")
    remarks = []
    if settings.freeze is not None:
        sizes = [
            (p.numel(), p.requires_grad) for backbone in objective.backbones() for p in backbone.model.parameters()
        ]
        frozen, total = sum(size for size, trained in sizes if not trained), sum(size for size, _ in sizes)
        remarks.append(f"frozen for the whole run: {frozen / 1e6:.2f} of {total / 1e6:.2f} M parameters")
    if settings.init is None and (settings.freeze is not None or settings.freeze_epochs):
        remarks.append("without --init the frozen layers have random weights")
    if settings.freeze == "backbone" and (settings.method != "supervised" or settings.add):
        remarks.append("with --freeze backbone an extra loss only trains its own head; --method supervised is faster")
    return remarks
