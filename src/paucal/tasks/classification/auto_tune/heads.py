"""The linear heads that may replace logistic regression on a network's last features.

They also read the mean and the spread of the last stages' maps, see
`backbones/stage_classifier.py`. A new head is one entry of `HEADS`.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from paucal.evaluation.protocols.classifier import LinearClassifier
from paucal.tasks.classification.auto_tune.gaussian import fit_gaussian
from paucal.tasks.classification.auto_tune.probe import ABSENT, DEFAULT_STRENGTH, fit_regression
from paucal.tasks.classification.auto_tune.standardised import standardise

# From (N, D) float64 standardised features, or coordinates with the same inner products, (N,) labels and K.
FitHead = Callable[[Tensor, Tensor, int], LinearClassifier]


def fit_logistic_stages(features: Tensor, labels: Tensor, n_classes: int) -> LinearClassifier:
    """Fit logistic regression with a fixed penalty; choosing among 1, 10, 100 and 1000 was no better on average."""
    return fit_regression(features, labels, n_classes, DEFAULT_STRENGTH)


HEADS: Mapping[str, FitHead] = {
    "logistic regression on the last stages": fit_logistic_stages,
    "Gaussian classes on the last stages": fit_gaussian,
}


def fit_mixture(
    features: Tensor, labels: Tensor, n_classes: int, mixture: Mapping[str, float], heads: Mapping[str, FitHead] = HEADS
) -> tuple[Tensor, Tensor]:
    """Fit heads to all images and add up their logits.

    Args:
        features: (N, D) raw features.
        labels: (N,) classes in [0, K).
        n_classes: K.
        mixture: Weight of the logits of each head, by its name.
        heads: Table of heads.

    Returns:
        (K, D) float32 weights and (K,) float32 biases for raw features.
    """
    standard = standardise(features)
    fitted = [(share, heads[name](standard.coordinates, labels, n_classes)) for name, share in mixture.items()]
    weight = sum((share * one.weight for share, one in fitted), start=0.0 * fitted[0][1].weight)
    bias = sum((share * one.bias for share, one in fitted), start=0.0 * weight[:, 0])
    weight, bias = standard.carry_back(weight, bias.clamp(min=ABSENT))
    return weight.float(), bias.float()
