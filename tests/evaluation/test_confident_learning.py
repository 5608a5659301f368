"""Confident learning against loops written from the paper, and against cleanlab where it is installed."""

import importlib.util
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paucal.evaluation.confident_learning import confident_class, suspected_labels


def made(seed: int, n: int, k: int, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities around true classes, and labels of which a share is wrong; every class has a label."""
    generator = np.random.default_rng(seed)
    true = np.concatenate([np.arange(k), generator.integers(0, k, n - k)])
    scores = generator.normal(size=(n, k)) + 2.5 * np.eye(k)[true]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = np.where(generator.random(n) < noise, generator.integers(0, k, n), true)
    labels[:k] = np.arange(k)
    return probabilities, labels


def naive(probabilities: np.ndarray, labels: np.ndarray) -> tuple[list[int], list[int]]:
    n, k = probabilities.shape
    thresholds = [
        sum(probabilities[i, c] for i in range(n) if labels[i] == c) / max(1, sum(labels == c)) for c in range(k)
    ]
    guesses, suspects = [-1] * n, []
    for i in range(n):
        confident = [c for c in range(k) if (labels == c).any() and probabilities[i, c] >= thresholds[c] - 1e-6]
        if not confident:
            continue
        best = max(range(k), key=lambda c: probabilities[i, c])
        guess = confident[0] if len(confident) == 1 else best
        guesses[i] = guess
        if guess != labels[i] and best != labels[i]:
            suspects.append(i)
    return guesses, sorted(suspects, key=lambda i: probabilities[i, labels[i]])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 60), st.integers(2, 5))
def test_suspects__are_those_of_the_loops(seed, n, k):
    probabilities, labels = made(seed, n, k)
    guesses, suspects = naive(probabilities, labels)
    assert confident_class(probabilities, labels).tolist() == guesses
    assert [one.position for one in suspected_labels(probabilities, labels)] == suspects


@pytest.mark.slow  # cleanlab takes long to load
@pytest.mark.skipif(importlib.util.find_spec("cleanlab") is None, reason="cleanlab is not installed")
@pytest.mark.parametrize("seed", range(5))
def test_suspects__are_those_of_cleanlab(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from cleanlab.filter import find_label_issues

        probabilities, labels = made(seed, 400, 4)
        theirs = find_label_issues(
            labels,
            probabilities,
            filter_by="confident_learning",
            return_indices_ranked_by="self_confidence",
            n_jobs=1,
        )
    ours = suspected_labels(probabilities, labels)
    assert len(ours) > 10
    assert [one.position for one in ours] == theirs.tolist()


def test_suspects__say_what_was_given_and_what_is_likely():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05]])
    labels = np.array([0, 0, 1, 1, 1])
    (only,) = suspected_labels(probabilities, labels)
    assert (only.position, only.given, only.suggested) == (4, 1, 0)
    assert only.confidence == pytest.approx(0.05)
    assert only.suggested_confidence == pytest.approx(0.95)


def test_thresholds__of_a_class_without_images_are_never_reached():
    assert confident_class(np.array([[0.5, 0.5], [0.4, 0.6]]), np.array([0, 0])).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("probabilities", "labels"),
    [(np.ones((2, 2)), np.zeros(3, dtype=int)), (np.full((1, 2), np.nan), np.zeros(1, dtype=int))],
)
def test_suspects__refuses_what_is_no_probability(probabilities, labels):
    with pytest.raises(ValueError, match="expected"):
        suspected_labels(probabilities, labels)
