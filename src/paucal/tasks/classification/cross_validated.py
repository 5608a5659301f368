"""The score of a run without test images, from the cross-validated predictions of its first model."""

import torch
from torch import Tensor

from paucal.evaluation.predictions import Predictions
from paucal.evaluation.record import record_classification
from paucal.evaluation.results import Report
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.head_race import HeldOut

FILE = "held_out.safetensors"


def store_held_out(run: RunFolder, held_out: HeldOut, fitted: Tensor) -> None:
    """Store the predictions of a cross-validation in the run.

    Args:
        run: Run folder.
        held_out: Predictions, whose rows are positions among the images of the cross-validation.
        fitted: (N,) positions of these images among all training images.
    """
    values = {"rows": fitted[held_out.rows], "logits": held_out.logits, "labels": held_out.labels}
    save_weights(run.path / FILE, {**values, "folds": torch.tensor(held_out.folds)})


def read_held_out(run: RunFolder) -> HeldOut:
    """Read the predictions of a cross-validation, whose rows are positions among all training images."""
    arrays = read_weights(run.path / FILE)
    return HeldOut(arrays["rows"], arrays["logits"], arrays["labels"], int(arrays["folds"]))


def record_cross_validated(run: RunFolder, setup: TrainingSetup) -> Report:
    """Write and return the report on the cross-validated predictions of the run's first model.

    Accuracy is the mean over all repeats; tables and pictures show the first repeat.
    """
    held_out, train = read_held_out(run), torch.from_numpy(setup.data.part("train"))
    labels = torch.from_numpy(setup.data.images.labels).long()
    first = Predictions(train[held_out.rows], held_out.logits[0].float(), held_out.labels)
    images, classes, repeated = setup.data.images, setup.card.classes, (held_out.hits.numpy(), held_out.folds)
    return record_classification(run.evaluation("test"), run.plots, first, images, classes, labels[train], repeated)
