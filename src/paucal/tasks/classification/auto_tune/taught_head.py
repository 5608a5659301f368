"""A linear head on frozen features that is fitted to the labels and to a teacher's probabilities."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.protocols.logistic import fit_softmax
from paucal.objectives import Distillation, Objective
from paucal.objectives.one_backbone import ClassifierObjective
from paucal.runner.images import eval_loader
from paucal.tasks.classification.auto_tune.probe import SOLVER, Head, score_head, standardise
from paucal.tasks.classification.auto_tune.state import FittedHead, TuneState

HEAD_NAME = "logistic regression on the teacher's probabilities and the labels"


class _TeacherLogits(nn.Module):
    def __init__(self, term: Distillation) -> None:
        super().__init__()
        self.term = term

    def forward(self, images: Tensor) -> Tensor:
        return self.term.teacher_logits(images)


def find_soft_distillation(objective: Objective) -> Distillation | None:
    """Return a run's extra loss that distils a teacher's probabilities; None if the run has no such loss."""
    terms = objective.named_terms().values() if isinstance(objective, ClassifierObjective) else ()
    return next((term for term in terms if isinstance(term, Distillation) and term.soft), None)


def learn_from_teacher(state: TuneState, fitted: FittedHead) -> FittedHead:
    """Fit a second head to the labels and the teacher's probabilities; return the better of both heads."""
    data = state.setup.data
    term, val = find_soft_distillation(state.setup.objective), torch.from_numpy(data.split_indices("val"))
    if term is None or not len(val):
        return fitted
    train, targets = torch.from_numpy(data.split_indices("train"))[fitted.rows], torch.from_numpy(data.images.targets)
    first_head, count = fitted.race.head or fitted.head, fitted.n_images
    features = fitted.features[:, : first_head.weight.shape[1]]
    probabilities = _teacher_probabilities(state, term, train.numpy())
    head = fit_taught_head(features[:count], targets[train], probabilities, first_head.strength)
    score = score_head(head, features[count:], targets[val])
    if score < score_head(first_head, features[count:], targets[val]):
        return fitted
    if fitted.race.head is None:
        return replace(fitted, head=head, score=score, race=replace(fitted.race, name=HEAD_NAME))
    return replace(fitted, score=score, race=replace(fitted.race, head=head, name=HEAD_NAME))


def _teacher_probabilities(state: TuneState, term: Distillation, indices: NDArray[np.int64]) -> Tensor:
    """Return the teacher's (N, K) probabilities for the images at these positions."""
    setup, device = state.setup, state.setup.settings.device
    with state.console.progress("predictions of the teacher") as advance:
        loader = eval_loader(setup.data, indices, setup.card.preprocessing, setup.settings)
        return predict_in_order(_TeacherLogits(term).to(device), loader, indices, device, advance).softmax(1)


def fit_taught_head(features: Tensor, labels: Tensor, probabilities: Tensor, strength: float) -> Head:
    """Fit logistic regression with an L2 penalty to the mean of one-hot labels and a teacher's (N, K) probabilities."""
    standard = standardise(features)
    targets = (F.one_hot(labels, probabilities.shape[1]) + probabilities.double()) / 2
    weight, bias, *_ = fit_softmax(standard.coordinates, targets, strength, SOLVER)
    weight, bias = standard.unstandardise(weight, bias)
    return Head(weight.float(), bias.float(), strength, None)
