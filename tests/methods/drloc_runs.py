"""Runs with DrLoc, from what is typed on the command line to the loss."""

import torch
from torch import Tensor, nn

from paucal.cli.training import parse_run_arguments
from paucal.methods.training import build_objective
from paucal.methods.training import resolve_training as resolve
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import DrLoc
from paucal.objectives.drloc import LocalizationHead
from paucal.objectives.supervised import ClassifierObjective
from paucal.rules.resolve import DataAndMachine, backbone_spec
from paucal.tasks.classification.job import TrainingJob
from paucal.types import Batch, Progress

FACTS = DataAndMachine(n_train=500, n_classes=5, median_side=24, cores=2)
SIDES = torch.tensor([4.0, 6.0])  # rows and columns of the grid of 16x24 pixels
MODEL = "--model vit_mini --img-size 16 24 --model-args depth=2 --device cpu --epochs 1"
SAID = 0.25  # what the head says


def settings_of(words: str, model: str = MODEL) -> TrainSettings:
    """Return the settings of a command line, checked and completed."""
    _, given, given_settings = parse_run_arguments("train", "", TrainSettings, [*model.split(), *words.split()])
    settings, _ = TrainingJob().check(TrainSettings(**given_settings), given)
    return resolve(settings, FACTS)[0]


def built(words: str = "", model: str = MODEL) -> tuple[ClassifierObjective, DrLoc]:
    """Return what a command line trains, and its DrLoc term."""
    settings = settings_of(words, model)
    torch.manual_seed(0)
    objective = build_objective(settings, backbone_spec(settings, 5)[0])
    assert isinstance(objective, ClassifierObjective)
    term = objective.named_terms()["drloc"]
    assert isinstance(term, DrLoc)
    return objective.eval(), term


def images() -> Tensor:
    """Return (3, 3, 16, 24), always the same."""
    return torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def heads_of(term: DrLoc) -> list[LocalizationHead]:
    """Return the localization MLPs, one per grid."""
    return [head for head in term.heads if isinstance(head, LocalizationHead)]


def seen_by_heads(words: str) -> tuple[float, list[tuple[Tensor, Tensor]]]:
    """Return the loss with a head that always says the same, and each head's grid and pairs."""
    objective, term = built(words)
    seen: list[tuple[Tensor, Tensor]] = []
    for head in heads_of(term):
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        nn.init.constant_(head.last.bias, SAID)
        head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad():
        features = objective.backbone(images(), term.request)
        loss = term(features, Batch(torch.arange(3), []), Progress(0, 10, 5))
    return loss.item(), seen
