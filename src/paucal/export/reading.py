"""`paucal.load`: loading a classifier from a run, an exported folder or an ONNX file."""

import hashlib
import os
from pathlib import Path

import torch

from paucal.data.arguments import path_text
from paucal.export.onnx_model import SUFFIX, read_onnx
from paucal.export.timm_folder import CARD, WEIGHTS
from paucal.models.tasks import task_of
from paucal.models.trained import TrainedModel, load_trained, usable_device
from paucal.runs import RunFolder
from paucal.types import UserError


def load_model(source: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> TrainedModel:
    """Load a model.

    Args:
        source: A run, the folder of a run, or a folder or an `.onnx` file that `paucal export` wrote. A `.pt2` file is
            refused, since torch unpickles such files, and an untrusted file could execute arbitrary code.
        device: Device for the model. An ONNX model can run only on the CPU.

    Raises:
        UserError: the model does not exist, its files do not match, or torch cannot use the device.

    Example:
        >>> model = paucal.load("runs/1")  # doctest: +SKIP
        >>> model.probabilities([Image.open("photo.jpg")])  # doctest: +SKIP
        tensor([[0.0312, 0.9688]])
    """
    if isinstance(source, RunFolder):
        return load_trained(source, device)
    path = Path(path_text(source, "the model"))
    if path.suffix.lower() == SUFFIX:
        if usable_device(device).type != "cpu":
            raise UserError(f"--device is {str(device)!r}, but an ONNX model runs only on the cpu: remove --device.")
        return read_onnx(path)
    if path.suffix.lower() == ".pt2":
        raise UserError(
            f"{str(path)!r}: paucal does not read .pt2 files, since unpickling an untrusted file can execute any code; "
            "use torch.export.load if you trust the file, or give the folder of a run or an .onnx file."
        )
    return load_trained(source, device)


def task_of_model(source: str) -> str:
    """Return the task of a run or of an exported model (see `models.tasks`)."""
    return read_onnx(Path(source)).card.task if source.lower().endswith(SUFFIX) else task_of(source)


def model_digest(source: str | os.PathLike[str]) -> str:
    """Return a SHA-256 hash of the weights and the card of a model that `load_model` can load.

    Raises:
        OSError: the files of the model cannot be read.
    """
    path, digest = Path(source), hashlib.sha256()
    for file in [path] if path.suffix.lower() == SUFFIX else [path / WEIGHTS, path / CARD]:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
