"""Heads that auto-tuning stores in the run folder, and from which tuning starts."""

from collections.abc import Sequence

from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.tasks.classification.auto_tune.probe import Head
from paucal.types import UserError

PROBE_FILE = "probe.safetensors"


def head_file_name(image_size: Sequence[int]) -> str:
    """Return the file name of a head fitted at an image size that differs from the probe's."""
    return f"head-{'x'.join(map(str, image_size))}.safetensors"


def load_head(run: RunFolder, objective: Objective, image_size: Sequence[int] | None) -> None:
    """Load a stored head into the deployed network: the head for an image size, or else the probe.

    Nothing is loaded if the run has stored neither.
    """
    path = run.path / head_file_name(image_size or [])
    path = path if path.is_file() else run.path / PROBE_FILE
    classifier = linear_classifier(objective.deployable())
    if not path.is_file() or classifier is None:
        return
    try:
        classifier.load_state_dict(read_weights(path))
    except RuntimeError as problem:
        raise UserError(f"{str(path)!r} does not match the run's model: train again.") from problem


def save_head(run: RunFolder, head: Head, name: str) -> None:
    """Store a head, from which tuning may start, in a file of the run folder."""
    save_weights(run.path / name, {"weight": head.weight, "bias": head.bias})
