"""The sizes, costs and sources of all models, stored because measuring over a thousand takes minutes."""

import csv
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.probe import probe_images
from paucal.types import UserError


@dataclass(frozen=True)
class Measured:
    """A model's size and cost at its own image size and number of classes.

    Attributes:
        parameters: Number of parameters, including frozen ones.
        macs: Multiply-adds of convolutions, linear layers and attention products, for one image; papers print this
            number as FLOPs. None where the model cannot be counted.
        image_size: (height, width) in pixels at which it was measured.
        grid: (rows, columns) of the last grid; None where the model keeps none.
        dim: Channels of the last grid; None where the model keeps none.
    """

    parameters: int
    macs: int | None
    image_size: tuple[int, int]
    grid: tuple[int, int] | None
    dim: int | None


def measure(name: str) -> Measured:
    """Build a registered model on the meta device, where nothing is computed, and measure it.

    Example:
        >>> import paucal.backbones
        >>> measured = measure("vit_mini")
        >>> measured.parameters, round(measured.macs / 1e6), measured.grid
        (1221928, 76, (8, 8))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            model = timm.create_model(name).eval()
        config: Any = model.pretrained_cfg
        height, width = (int(side) for side in config["input_size"][1:])
        try:
            backbone = FeatureBackbone(model, (height, width))
            grid, dim = backbone.grid, backbone.dim
        except (UserError, RuntimeError, TypeError, ValueError, AttributeError):
            grid = dim = None
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Measured(parameters, _count(model, (height, width)), (height, width), grid, dim)


def _count(model: torch.nn.Module, image_size: tuple[int, int]) -> int | None:
    # With gradients: PiT and CaiT cannot be counted without.
    images = probe_images(model, image_size).requires_grad_()
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            model(images)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return counter.get_total_flops() // 2


FILE = "models.csv"
FIELDS = ("model", "parameters", "macs", "height", "width", "rows", "columns", "dim")


def describe(name: str) -> Measured:
    """Return the stored measurements of a model; a model missing from the table (of a newer timm) is measured.

    Example:
        >>> describe("resnet50").parameters
        25557032
    """
    return stored().get(name) or measure(name)


@lru_cache(maxsize=1)
def stored() -> dict[str, Measured]:
    """Return the table that comes with the package."""
    with files("paucal.backbones").joinpath(FILE).open(encoding="utf-8") as file:
        return dict(read_table(file))


def read_table(lines: Iterable[str]) -> Iterator[tuple[str, Measured]]:
    """Yield the rows of a table; lines that begin with # are comments."""
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        number = {key: int(value) if value else None for key, value in row.items() if key != "model"}
        rows, columns = number["rows"], number["columns"]
        grid = None if rows is None or columns is None else (rows, columns)
        size = (number["height"] or 0, number["width"] or 0)
        yield row["model"], Measured(number["parameters"] or 0, number["macs"], size, grid, number["dim"])


def write_table(path: Path, models: Iterable[tuple[str, Measured]], comment: str) -> None:
    """Write a table, sorted as given.

    Args:
        path: Path of the file.
        models: Names and measurements.
        comment: One line on the software used for measuring.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        _write(file, models, comment)


def _write(file: TextIO, models: Iterable[tuple[str, Measured]], comment: str) -> None:
    file.write(f"# {comment}\n")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    for name, one in models:
        rows, columns = one.grid or (None, None)
        writer.writerow((name, one.parameters, one.macs, *one.image_size, rows, columns, one.dim))


_OURS = "paucal.backbones."
_PAPERS = {
    "dhvt": "DHVT (Lu et al. 2022)",
    "lvvit": "LV-ViT (Jiang et al. 2021)",
    "t2t_vit": "T2T-ViT (Yuan et al. 2021)",
    "cvt": "CvT (Wu et al. 2021)",
    "cvt_drloc": "CvT in DrLoc (Liu et al. 2021)",
    "cvt_esvit": "CvT in EsViT (Li et al. 2022)",
    "vil": "ViL (Zhang et al. 2021)",
    "vil_esvit": "ViL in EsViT (Li et al. 2022)",
    "swin_esvit": "Swin in EsViT (Li et al. 2022)",
    "swin_padded": "Swin (Liu et al. 2021), padded before it is shifted",
    "flavours": "ViT in the papers' programs",
    "resnet_cifar": "ResNet (He et al. 2016), stem for small images",
    "vit_cifar": "plain ViT, DHVT's baseline",
    "small": "paucal",
}


def is_ours(name: str) -> bool:
    """Tell whether paucal registers the model."""
    return timm.model_entrypoint(name).__module__.startswith(_OURS)


def source_of(name: str) -> str:
    """Return the paper of one of our models, else "timm"."""
    module = timm.model_entrypoint(name).__module__
    return _PAPERS.get(module.rpartition(".")[2], "paucal") if module.startswith(_OURS) else "timm"
