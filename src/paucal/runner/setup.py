"""The setup of a run: everything that it needs, checked before anything is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paucal.backbones.weights.load_report import LoadReport
from paucal.models.card import ModelCard
from paucal.objectives import Objective
from paucal.runner.images import SplitImages
from paucal.settings.groups import JobSettings
from paucal.training import Plan

S = TypeVar("S", bound=JobSettings)


@dataclass(frozen=True)
class RunSetup(Generic[S]):
    """Everything that a run needs, before anything is written.

    Attributes:
        settings: Resolved settings.
        origin: Origin of each value.
        data: Images and their split.
        plan: Plan for the trainer.
        objective: Objective to train.
        card: ModelCard of the deployed model.
        remarks: Sentences to print before the run starts.
        start: Report on the loaded weights; None for random weights.
        planned_at: `time.monotonic()` at which the length was planned, or the run was opened.
    """

    settings: S
    origin: Mapping[str, str]
    data: SplitImages
    plan: Plan
    objective: Objective
    card: ModelCard
    remarks: tuple[str, ...]
    start: LoadReport | None = None
    planned_at: float = field(default_factory=time.monotonic, kw_only=True)

    @property
    def weights_text(self) -> str:
        """Number of deployed parameters and of those in training heads, as text."""
        deployed = sum(p.numel() for p in self.objective.deployable().parameters())
        trained = {id(p): p for p in self.objective.backbones()[-1].model.parameters()}
        extra = sum(p.numel() for p in self.objective.parameters() if p.requires_grad and id(p) not in trained)
        heads = f" and {extra / 1e6:.2f} M in training heads" if extra > 0 else ""
        return f"{deployed / 1e6:.2f} M parameters{heads}"

    @property
    def grid_text(self) -> str:
        """Last grid of the deployed backbone, as text."""
        rows, columns = self.objective.backbones()[0].grid
        return f"{rows}x{columns}"

    def describe(self) -> str:
        """Return one line with name, parameters, image size and grid."""
        spec = self.card.backbone
        height, width = spec.image_size
        return f"{spec.name}, {self.weights_text}, images {height}x{width}, grid {self.grid_text}"
