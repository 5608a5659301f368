"""A linear head on frozen features that is fitted to the labels and to a teacher's probabilities."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.evaluation.predictions import predict_in_order
from paucal.evaluation.protocols.logistic import fit_softmax
from paucal.objectives import Distillation
from paucal.objectives.supervised import ClassifierObjective
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


def learn_from_teacher(state: TuneState, fitted: FittedHead) -> FittedHead:
    """Also fit a head to the probabilities of a run's soft teacher, if it has one; return the better of both heads."""
    setup, data, device = state.setup, state.setup.data, state.setup.settings.device
    terms = setup.objective.named_terms().values() if isinstance(setup.objective, ClassifierObjective) else ()
    soft_terms = [term for term in terms if isinstance(term, Distillation) and term.soft]
    val = torch.from_numpy(data.split_indices("val"))
    if not soft_terms or not len(val):
        return fitted
    train, targets = torch.from_numpy(data.split_indices("train"))[fitted.rows], torch.from_numpy(data.images.targets)
    first_head, count = fitted.comparison.head or fitted.head, fitted.n_images
    features = fitted.features[:, : first_head.weight.shape[1]]
    with state.console.progress("predictions of the teacher") as advance:
        loader = eval_loader(data, train.numpy(), setup.card.preprocessing, setup.settings)
        teacher = _TeacherLogits(soft_terms[0]).to(device)
        probabilities = predict_in_order(teacher, loader, train.numpy(), device, advance).softmax(1)
    head = fit_taught_head(features[:count], targets[train], probabilities, first_head.strength)
    score = score_head(head, features[count:], targets[val])
    if score < score_head(first_head, features[count:], targets[val]):
        return fitted
    if fitted.comparison.head is None:
        return replace(fitted, head=head, score=score, comparison=replace(fitted.comparison, name=HEAD_NAME))
    return replace(fitted, score=score, comparison=replace(fitted.comparison, head=head, name=HEAD_NAME))


def fit_taught_head(features: Tensor, labels: Tensor, probabilities: Tensor, strength: float) -> Head:
    """Fit logistic regression with an L2 penalty to the mean of one-hot labels and a teacher's (N, K) probabilities."""
    standard = standardise(features)
    targets = (F.one_hot(labels, probabilities.shape[1]) + probabilities.double()) / 2
    weight, bias, *_ = fit_softmax(standard.coordinates, targets, strength, SOLVER)
    weight, bias = standard.unstandardise(weight, bias)
    return Head(weight.float(), bias.float(), strength, None)
