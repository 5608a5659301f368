"""Everything a run needs, checked, with nothing written yet; and how it is described."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paucal.backbones.weights.load_report import LoadReport
from paucal.models.card import ModelCard
from paucal.objectives import Objective
from paucal.settings.groups import JobSettings
from paucal.training import Plan
from paucal.verbs.run.images import Prepared

S = TypeVar("S", bound=JobSettings)


@dataclass(frozen=True)
class Assembled(Generic[S]):
    """What a job makes of its settings and its images.

    Attributes:
        settings: all of them, resolved.
        origin: where each value comes from.
        prepared: the images and what each is used for.
        plan: what the trainer is told.
        objective: what is trained.
        card: describes the deployable model.
        remarks: sentences that people should read before it starts.
        start: what was taken of the weights it starts from; None for none.
        planned_at: value of `time.monotonic()` when its length was planned, or when it was opened.
    """

    settings: S
    origin: Mapping[str, str]
    prepared: Prepared
    plan: Plan
    objective: Objective
    card: ModelCard
    remarks: tuple[str, ...]
    start: LoadReport | None = None
    planned_at: float = field(default_factory=time.monotonic, kw_only=True)

    @property
    def weights_text(self) -> str:
        """The number of deployed parameters, and of those in heads that stay behind."""
        deployed = sum(p.numel() for p in self.objective.deployable().parameters())
        trained = {id(p): p for p in self.objective.backbones()[-1].model.parameters()}
        extra = sum(p.numel() for p in self.objective.parameters() if p.requires_grad and id(p) not in trained)
        heads = f" and {extra / 1e6:.2f} M in training heads" if extra > 0 else ""
        return f"{deployed / 1e6:.2f} M parameters{heads}"

    @property
    def grid_text(self) -> str:
        """The last grid of the deployed backbone."""
        rows, columns = self.objective.backbones()[0].grid
        return f"{rows}x{columns}"

    def describe(self) -> str:
        """Return one line: name, parameters, image size, grid."""
        spec = self.card.backbone
        height, width = spec.image_size
        return f"{spec.name}, {self.weights_text}, images {height}x{width}, grid {self.grid_text}"
