"""A linear head on frozen features that learns from a teacher's probabilities and the labels."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.protocols.logistic import fit_softmax
from paucal.objectives import Distillation, Objective
from paucal.objectives.one_backbone import OneBackbone
from paucal.runner.images import eval_loader
from paucal.tasks.classification.auto_tune.probe import SOLVER, Head, head_score, standardise
from paucal.tasks.classification.auto_tune.state import FittedHead, TuneState

NAME = "logistic regression on the teacher's probabilities and the labels"


class _TeacherAnswers(nn.Module):
    def __init__(self, term: Distillation) -> None:
        super().__init__()
        self.term = term

    def forward(self, images: Tensor) -> Tensor:
        return self.term.answers(images)


def soft_teacher(objective: Objective) -> Distillation | None:
    """Return a run's extra loss on a teacher's probabilities; None for other runs."""
    terms = objective.named_terms().values() if isinstance(objective, OneBackbone) else ()
    return next((term for term in terms if isinstance(term, Distillation) and term.soft), None)


def learn_from_teacher(state: TuneState, fitted: FittedHead) -> FittedHead:
    """Return the first model, with a head that also learned from the run's teacher if validation prefers it."""
    setup = state.setup
    term, val = soft_teacher(setup.objective), torch.from_numpy(setup.data.part("val"))
    if term is None or not len(val):
        return fitted
    train, targets = (
        torch.from_numpy(setup.data.part("train"))[fitted.rows],
        torch.from_numpy(setup.data.images.targets),
    )
    usual, count = fitted.race.head or fitted.head, fitted.images
    features = fitted.features[:, : usual.weight.shape[1]]
    shares = _teacher_probabilities(state, term, train.numpy())
    head = fit_taught_head(features[:count], targets[train], shares, usual.strength)
    score = head_score(head, features[count:], targets[val])
    if score < head_score(usual, features[count:], targets[val]):
        return fitted
    if fitted.race.head is None:
        return replace(fitted, head=head, score=score, race=replace(fitted.race, name=NAME))
    return replace(fitted, score=score, race=replace(fitted.race, head=head, name=NAME))


def _teacher_probabilities(state: TuneState, term: Distillation, indices: NDArray[np.int64]) -> Tensor:
    """Return the teacher's (N, K) probabilities for the images at these positions."""
    setup, settings = state.setup, state.setup.settings
    with state.console.progress("predictions of the teacher") as advance:
        loader = eval_loader(setup.data, indices, setup.card.preprocessing, settings)
        model = _TeacherAnswers(term).to(settings.device)
        return predict_in_order(model, loader, indices, settings.device, advance).softmax(1)


def fit_taught_head(features: Tensor, labels: Tensor, shares: Tensor, strength: float) -> Head:
    """Fit logistic regression to the mean of (N,) labels and a teacher's (N, K) probabilities, with an L2 penalty."""
    standard = standardise(features)
    targets = (F.one_hot(labels, shares.shape[1]) + shares.double()) / 2
    weight, bias, *_ = fit_softmax(standard.coordinates, targets, strength, SOLVER)
    weight, bias = standard.carry_back(weight, bias)
    return Head(weight.float(), bias.float(), strength, None)
