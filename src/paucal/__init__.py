"""paucal trains vision transformers well when images are few.

Importing paucal registers its backbones with timm. Each public name is imported on first use. If torch has not been
imported yet, `import paucal` sets environment variables that torch reads, unless the user has set them: how long
threads spin before they sleep and, in a container with a CPU quota, the number of threads (`paucal.cores`).

Example:
    >>> import torch, paucal
    >>> head = paucal.LocalizationHead(dim=16)
    >>> grid = torch.randn(4, 16, 7, 7)
    >>> generator = torch.Generator().manual_seed(0)
    >>> paucal.drloc_loss(grid, head, n_pairs=64, generator=generator).shape
    torch.Size([])
"""

import os
import sys

from paucal.signals import exit_on_interrupt

_program = sys.argv[0] if sys.argv else ""  # "-m" while Python is still locating the module for `python -m paucal`
_is_command = os.path.splitext(os.path.basename(_program))[0] == "paucal" or (
    _program == "-m" and "paucal" in sys.orig_argv
)
if _is_command:
    exit_on_interrupt()  # before all other imports, which take most of the time of a short command

# ruff: noqa: E402
import importlib
import pkgutil
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from paucal.cores import prepare_threads

if TYPE_CHECKING:  # for type checkers and editors; a test checks that `_MODULES` has the same names
    from paucal.estimators.classifier import ImageClassifier as ImageClassifier
    from paucal.estimators.embedder import ImageEmbedder as ImageEmbedder
    from paucal.estimators.regressor import ImageRegressor as ImageRegressor
    from paucal.export.reading import load_model as load
    from paucal.losses import drloc_loss as drloc_loss
    from paucal.losses import esvit_loss as esvit_loss
    from paucal.losses import lejepa_loss as lejepa_loss
    from paucal.losses import token_label_loss as token_label_loss
    from paucal.models.published import load_published as load_published
    from paucal.models.trained import TrainedModel as Deployed
    from paucal.objectives import DrLoc as DrLoc
    from paucal.objectives import LocalizationHead as LocalizationHead
    from paucal.objectives import Objective as Objective
    from paucal.objectives import SelfDistillation as SelfDistillation
    from paucal.objectives import Supervised as Supervised
    from paucal.objectives import Term as Term
    from paucal.studies.launch import study as study
    from paucal.tasks.classification.folds import cross_validate as cross_validate
    from paucal.tasks.detection.job import detect as detect
    from paucal.tasks.pretraining.job import pretrain as pretrain
    from paucal.tasks.segmentation.job import segment as segment
    from paucal.tasks.segmentation.model import load_segmenter as load_segmenter
    from paucal.tasks.train import train as train
    from paucal.types import UserError as UserError
    from paucal.verbs.check.launch import check as check
    from paucal.verbs.compare.launch import compare as compare
    from paucal.verbs.convert.launch import convert as convert
    from paucal.verbs.eval.launch import evaluate as evaluate
    from paucal.verbs.explain.launch import explain_images as explain_images
    from paucal.verbs.export.launch import export_model as export_model
    from paucal.verbs.label.launch import label as label
    from paucal.verbs.next.launch import next_images as next_images
    from paucal.verbs.predict.detection import detect_objects as detect_objects
    from paucal.verbs.predict.launch import predict as predict
    from paucal.verbs.predict.segmentation import predict_masks as predict_masks
    from paucal.verbs.runs.launch import list_runs as list_runs
    from paucal.verbs.runs.verify import verify_run as verify_run
    from paucal.verbs.shard.launch import shard as shard
    from paucal.verbs.weights.launch import add_weights as add_weights
    from paucal.verbs.weights.launch import pack_weights as pack_weights
    from paucal.verbs.weights.launch import remove_weights as remove_weights
    from paucal.verbs.weights.listing import list_weights as list_weights

__version__ = version("paucal")

# The module of each public name. If the object has another name in that module, the other name follows after ":".
_MODULES = {
    "Deployed": "paucal.models.trained:TrainedModel",
    "DrLoc": "paucal.objectives",
    "ImageClassifier": "paucal.estimators.classifier",
    "ImageEmbedder": "paucal.estimators.embedder",
    "ImageRegressor": "paucal.estimators.regressor",
    "LocalizationHead": "paucal.objectives",
    "Objective": "paucal.objectives",
    "SelfDistillation": "paucal.objectives",
    "Supervised": "paucal.objectives",
    "Term": "paucal.objectives",
    "UserError": "paucal.types",
    "add_weights": "paucal.verbs.weights.launch",
    "check": "paucal.verbs.check.launch",
    "compare": "paucal.verbs.compare.launch",
    "convert": "paucal.verbs.convert.launch",
    "cross_validate": "paucal.tasks.classification.folds",
    "detect": "paucal.tasks.detection.job",
    "detect_objects": "paucal.verbs.predict.detection",
    "drloc_loss": "paucal.losses",
    "esvit_loss": "paucal.losses",
    "evaluate": "paucal.verbs.eval.launch",
    "explain_images": "paucal.verbs.explain.launch",
    "export_model": "paucal.verbs.export.launch",
    "label": "paucal.verbs.label.launch",
    "lejepa_loss": "paucal.losses",
    "list_runs": "paucal.verbs.runs.launch",
    "list_weights": "paucal.verbs.weights.listing",
    "load": "paucal.export.reading:load_model",
    "load_published": "paucal.models.published",
    "load_segmenter": "paucal.tasks.segmentation.model",
    "next_images": "paucal.verbs.next.launch",
    "pack_weights": "paucal.verbs.weights.launch",
    "predict": "paucal.verbs.predict.launch",
    "predict_masks": "paucal.verbs.predict.segmentation",
    "pretrain": "paucal.tasks.pretraining.job",
    "remove_weights": "paucal.verbs.weights.launch",
    "segment": "paucal.tasks.segmentation.job",
    "shard": "paucal.verbs.shard.launch",
    "study": "paucal.studies.launch",
    "token_label_loss": "paucal.losses",
    "train": "paucal.tasks.train",
    "verify_run": "paucal.verbs.runs.verify",
}
# Submodules that are imported when they are first used as attributes, such as `paucal.losses`.
_PACKAGES = ("types", *(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg and info.name != "cli"))

# Written out in full, since type checkers need a literal list.
__all__ = [
    "Deployed",
    "DrLoc",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageRegressor",
    "LocalizationHead",
    "Objective",
    "SelfDistillation",
    "Supervised",
    "Term",
    "UserError",
    "__version__",
    "add_weights",
    "check",
    "compare",
    "convert",
    "cross_validate",
    "detect",
    "detect_objects",
    "drloc_loss",
    "esvit_loss",
    "evaluate",
    "explain_images",
    "export_model",
    "label",
    "lejepa_loss",
    "list_runs",
    "list_weights",
    "load",
    "load_published",
    "load_segmenter",
    "next_images",
    "pack_weights",
    "predict",
    "predict_masks",
    "pretrain",
    "remove_weights",
    "segment",
    "shard",
    "study",
    "token_label_loss",
    "train",
    "verify_run",
]

prepare_threads()
if not _is_command:
    # This import registers our backbones for timm.create_model. The command line imports timm only when needed, since
    # timm is slow to import and `--help` should be fast.
    importlib.import_module("paucal.backbones")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        module, _, attribute = _MODULES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    if name in _PACKAGES:
        return importlib.import_module(f"paucal.{name}")
    raise AttributeError(f"module 'paucal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_PACKAGES])
