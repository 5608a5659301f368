"""Labels that are probably wrong: each image judged by a linear classifier that has not seen it."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.evaluation.confident_learning import suspected_labels
from paucal.evaluation.protocols.logistic import fit_logistic
from paucal.runner.console import Console
from paucal.tasks.classification.auto_tune.probe import SOLVER, fit_head

FOLDS = 5


@dataclass(frozen=True)
class SuspectLabel:
    """An image whose label is probably wrong.

    Attributes:
        position: in the set.
        given: name of its class.
        suggested: name of the class it probably has.
        confidence: probability of its own class, by a classifier that has not seen it.
        suggested_confidence: that of the suggested class.
    """

    position: int
    given: str
    suggested: str
    confidence: float
    suggested_confidence: float

    def to_dict(self, images: ImageSet) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {name: value for name, value in vars(self).items() if name != "position"}
        return {"key": images.keys[self.position], **values}


def find_suspects(
    images: ImageSet,
    indices: NDArray[np.int64],
    features: Tensor,
    groups: NDArray[np.int64],
    seed: int,
    console: Console,
) -> tuple[list[SuspectLabel], float]:
    """Return labels that are probably wrong, the most suspect first, and the share that was predicted as given.

    Args:
        images: the set.
        indices: (N,) positions of labelled images.
        features: (N, D) of these.
        groups: (N,) numbers; images of one group are never on both sides, since a copy would tell the label.
        seed: of the folds.
        console: shows progress.
    """
    labels = images.labels[indices]
    with console.progress("fitting classifiers") as advance:
        shares = out_of_fold(features, torch.from_numpy(labels), len(images.classes), groups, seed, advance)
    found = [
        SuspectLabel(
            int(indices[one.position]),
            images.classes[one.given],
            images.classes[one.suggested],
            one.confidence,
            one.suggested_confidence,
        )
        for one in suspected_labels(shares, labels)
    ]
    return found, float((shares.argmax(1) == labels).mean())


def out_of_fold(
    features: Tensor, labels: Tensor, n_classes: int, groups: NDArray[np.int64], seed: int = 0, progress: Any = None
) -> NDArray[np.float64]:
    """Return (N, K) probabilities of logistic regressions on standardised features, each of images left out.

    The strength of the penalty is the one that `paucal train` would choose for its first model.

    Args:
        features: (N, D) float32.
        labels: (N,) in [0, K).
        n_classes: K.
        groups: (N,) numbers of groups that stay together.
        seed: of the folds.
        progress: called with (fits done, all).

    Raises:
        UserError: the features are no finite numbers, or there is one class alone.
    """
    strength = fit_head(features, labels, n_classes, seed).strength
    shares = np.zeros((len(labels), n_classes))
    folds = _folds(labels.numpy(), groups, seed)
    for done, (rows, others) in enumerate(folds):
        fitted_on, left_out = features[rows], features[others]
        mean, deviation = fitted_on.mean(0), fitted_on.std(0).clamp(min=1e-8)
        fitted = fit_logistic((fitted_on - mean) / deviation, labels[rows], n_classes, strength, SOLVER)
        shares[others] = fitted.scores((left_out - mean) / deviation).double().softmax(1).numpy()
        if progress is not None:
            progress(done + 1, len(folds))
    return shares


def _folds(labels: NDArray[np.int64], groups: NDArray[np.int64], seed: int) -> list[tuple[NDArray, NDArray]]:
    folds = StratifiedGroupKFold(min(FOLDS, len(np.unique(groups))), shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer images than folds, which is fine here
        return [pair for pair in folds.split(labels, labels, groups) if len(pair[0]) and len(pair[1])]
