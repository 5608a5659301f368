"""Training with cross-entropy on the labels and with extra losses, and the options of fine-tuning."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.backbones.features import FeatureBackbone
from paucal.methods.contract import TrainingMethod
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective, Supervised, Term
from paucal.objectives.finetuning import BackboneTuner, FineTuning
from paucal.settings.options import flag
from paucal.types import UserError

MIN_LORA_IMAGES = 16  # minimum number of training images per class


def fine_tuning(settings: TrainSettings) -> FineTuning:
    """Return the fine-tuning options of the settings; raise a UserError if they contradict each other."""
    epochs = settings.epochs  # None if the number is not chosen yet
    if settings.freeze == "backbone" and settings.freeze_epochs:
        raise UserError("--freeze backbone lasts for the whole run: remove --freeze-epochs or --freeze.")
    if settings.freeze_epochs and epochs is not None and settings.freeze_epochs >= epochs:
        raise UserError(
            f"--freeze-epochs {settings.freeze_epochs} leaves no epoch of {epochs} for the backbone: give fewer "
            "--freeze-epochs, more --epochs, or --freeze backbone."
        )
    if settings.eval_mode and settings.init is None:
        raise UserError(
            "--eval-mode keeps the running statistics of pretrained weights, but this run starts from random "
            "weights: give --init, or remove --eval-mode."
        )
    if settings.lora_rank is not None:
        for name in ("freeze", "layer_decay"):
            if getattr(settings, name) is not None:
                raise UserError(f"--lora-rank freezes all weights except the classifier's: remove {flag(name)}.")
        if settings.compile or settings.strategy == "fsdp":
            raise UserError(
                "--lora-rank is not supported with --compile or --strategy fsdp: remove --lora-rank or the other "
                "option."
            )
    return FineTuning(
        settings.layer_decay, settings.freeze, settings.freeze_epochs, settings.eval_mode, settings.lora_rank
    )


def check_tuning(settings: TrainSettings, objective: Objective, per_class: Sequence[int]) -> None:
    """Refuse fine-tuning options that the method does not have, and `--lora-rank` for too few images per class."""
    if settings.lora_rank is not None and min(per_class) < MIN_LORA_IMAGES:
        raise UserError(
            f"--lora-rank needs {MIN_LORA_IMAGES} training images of each class, but the smallest class has "
            f"{min(per_class)}: remove --lora-rank."
        )
    names = ("layer_decay", "freeze", "freeze_epochs", "lora_rank")
    requested = [name for name in names if getattr(settings, name) is not None]
    requested = [name for name in requested if name != "freeze_epochs" or settings.freeze_epochs]
    requested += ["eval_mode"] if settings.eval_mode else []
    if requested and not isinstance(getattr(objective, "tuner", None), BackboneTuner):
        raise UserError(
            f"{flag(requested[0])} is not supported for --method {settings.method}: remove {flag(requested[0])}."
        )


def tuning_remarks(settings: TrainSettings, objective: Objective) -> list[str]:
    """Return notes on frozen layers, and warnings about settings that may give poor results."""
    remarks = []
    if settings.freeze is not None:
        parameters = [p for backbone in objective.backbones() for p in backbone.model.parameters()]
        frozen, total = sum(p.numel() for p in parameters if not p.requires_grad), sum(p.numel() for p in parameters)
        remarks.append(f"frozen for the whole run: {frozen / 1e6:.2f} of {total / 1e6:.2f} M parameters")
    if settings.init is None and (settings.freeze is not None or settings.freeze_epochs):
        remarks.append("without --init the frozen layers have random weights")
    if settings.freeze == "backbone" and (settings.method != "supervised" or settings.add):
        remarks.append("with --freeze backbone an extra loss only trains its own head; --method supervised is faster")
    return remarks


def build_supervised(settings: Any, backbone: FeatureBackbone, terms: Mapping[str, Term]) -> Objective:
    """Build the objective: cross-entropy on the labels, plus the extra losses `terms`."""
    return Supervised(backbone, terms, settings.label_smoothing, fine_tuning(settings))


METHOD = TrainingMethod(
    name="supervised",
    build=build_supervised,
    suggested_comparison=("drloc", "add dense relative localization"),
)
