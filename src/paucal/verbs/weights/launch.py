"""`paucal weights`: pack pretrained weights into a file, add weights to this machine, and remove added weights."""

import os
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch

from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.backbones.weights.start import StartWeights
from paucal.data.arguments import path_text
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import read_timm
from paucal.models.weights import table
from paucal.models.weights.adding import (
    ARCHIVE_SUFFIX,
    CheckedWeights,
    add_checked,
    check_licence,
    check_weights,
    compute_outputs,
    is_archive,
    read_archive,
    to_half_precision,
    write_archive,
)
from paucal.models.weights.local import find_added_weights, input_of_weights, licence_of
from paucal.models.weights.store import MAX_LICENCE_BYTES, AddedWeights, find_added, list_added, remove_added
from paucal.models.weights.table import APACHE
from paucal.reading import expand_user_path, read_decoded
from paucal.runner.console import Console, LoggedConsole
from paucal.runner.outputs import output_path
from paucal.runner.writable import check_file_writable
from paucal.runs.weights import read_untrusted
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.weights.settings import WeightsSettings
from paucal.wording import did_you_mean
from paucal.writing import write_atomically

MAX_DIFFERENCE = 0.01  # largest relative error of the outputs at which weights are stored with 16 bits
FILE_SETTINGS = ("model", "licence", "licence_text", "source", "mean", "std")  # settings that describe a weights file


@with_settings_signature(WeightsSettings)
def add_weights(file: str | os.PathLike[str], /, **settings: Any) -> AddedWeights:
    """Add trained weights to this machine; the same as `paucal weights add`.

    Args:
        file: An archive written by `pack_weights`, a safetensors file, or a file of `torch.save` with only tensors.
        **settings: Any field of `paucal.verbs.weights.settings.WeightsSettings`; `model` and `licence` are required
            unless the file is an archive.

    Raises:
        UserError: The file is damaged, contains Python objects or weights of another model, or the licence is missing.
        TypeError: A setting does not exist.
    """
    typed_settings = settings_from_keywords(WeightsSettings, settings, "paucal.add_weights", "weights")
    return add_weights_file(path_text(file, "the file"), typed_settings, LoggedConsole())


@with_settings_signature(WeightsSettings)
def pack_weights(weights: str | os.PathLike[str], /, **settings: Any) -> Path:
    """Write weights into one file for another machine; the same as `paucal weights pack`.

    Args:
        weights: Name of weights on this machine (see `list_weights`), or a file as for `add_weights`.
        **settings: Any field of `paucal.verbs.weights.settings.WeightsSettings`.

    Raises:
        UserError: The weights do not exist, the text of their licence is missing, or the archive cannot be written.
        TypeError: A setting does not exist.
    """
    typed_settings = settings_from_keywords(WeightsSettings, settings, "paucal.pack_weights", "weights")
    return pack(path_text(weights, "the weights"), typed_settings, LoggedConsole())


def remove_weights(name: str) -> int:
    """Remove weights that were added to this machine, and return the number of freed bytes.

    Raises:
        UserError: No weights of this name were added.
    """
    card = find_added(name)
    if card is None:
        names = [added.name for added in list_added()]
        package = next((trained.package for trained in table.CANDIDATES if trained.name == name), None)
        if package is not None and package.path() is not None:
            raise UserError(f"{name} is in a package: remove the package with pip uninstall {package.distribution}.")
        raise UserError(
            f"no weights of {name!r} were added{did_you_mean(name, names)}: 'paucal weights list' shows the weights on "
            "this machine."
        )
    return remove_added(card)


def add_weights_file(file: str, settings: WeightsSettings, console: Console) -> AddedWeights:
    """Check weights by loading them into their model, store them, and print which command uses them."""
    check_ranges(settings)
    if settings.output is not None:
        raise UserError("--output is only for 'paucal weights pack': remove --output.")
    weights = _check_file(expand_user_path(file, "FILE"), settings, console)
    if (existing := find_added(weights.name)) is not None:
        raise UserError(
            f"weights of {weights.name} have already been added ({existing.source}, SHA-256 {existing.sha256[:12]}): "
            f"run 'paucal weights remove {weights.name}' first, or give --model with another tag."
        )
    card = add_checked(weights)
    usage = f"'paucal train' may choose these weights; to require them, give --model {card.name}"
    if card.has_terms:
        usage = f"its licence, {card.licence}, has special terms, so the weights are only used with --model {card.name}"
    console.say(f"added {card.describe()}: {usage}")
    return card


def pack(what: str, settings: WeightsSettings, console: Console) -> Path:
    """Write an archive; see `pack_weights`."""
    check_ranges(settings)
    file = expand_user_path(what, "NAME")
    weights = _check_file(file, settings, console) if file.exists() else _check_named(what, settings)
    if not weights.licence_text and weights.licence.lower() == APACHE.lower():
        own_licence = (file.read_text() for file in distribution("paucal").files or () if file.name == "LICENSE")
        weights = replace(weights, licence_text=next(own_licence, ""))  # paucal's own licence is Apache-2.0
    if not weights.licence_text:
        raise UserError(
            f"the archive must contain the text of its licence, {weights.licence}: give a file with the text as "
            "--licence-text."
        )
    path = output_path(settings.output, Path(f"{weights.name}{ARCHIVE_SUFFIX}"))
    if not path.name.endswith(".zip"):
        raise UserError(f"--output: {str(path)!r} must end in .zip: give another name.")
    check_file_writable(path)
    weights = _halve_precision_if_accurate(weights, console)
    write_atomically(path, lambda stream: write_archive(stream, weights))
    console.say(
        f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): add it on another machine with 'paucal weights add'"
    )
    return path


def _check_named(name: str, settings: WeightsSettings) -> CheckedWeights:
    unusable = [key for key in FILE_SETTINGS if key != "licence_text" and getattr(settings, key) is not None]
    if unusable:
        raise UserError(
            f"--{unusable[0]} is for weights in a file, but {name!r} is not a file: remove --{unusable[0]}."
        )
    licence = check_licence(name, licence_of(name) or "not stated")
    text, weights = _licence_text(settings), read_timm(name, init=False)
    if (added_weights := find_added_weights(name)) is not None:
        source, text = added_weights.source, text or added_weights.licence_text
    else:
        sources = (trained.source for trained in table.CANDIDATES if trained.name == name)
        source = next(sources, "as timm publishes them")
    return check_weights(replace(weights, source=source), name, licence, text, input_of_weights(name))


def _check_file(path: Path, settings: WeightsSettings, console: Console) -> CheckedWeights:
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}: give an archive of 'paucal weights pack', or a weights file.")
    if is_archive(path):
        unusable = next((name for name in FILE_SETTINGS if getattr(settings, name) is not None), None)
        if unusable is not None:
            raise UserError(f"the archive {path.name} has its own card: remove --{unusable.replace('_', '-')}.")
        return read_archive(path)
    for name, example in (("model", "vit_small_patch16_224.dino"), ("licence", APACHE)):
        if getattr(settings, name) is None:
            raise UserError(f"--{name} is missing: give --{name} with a weights file, such as --{name} {example}.")
    model, licence = str(settings.model), check_licence(str(settings.model), str(settings.licence))
    text, preprocess = _licence_text(settings), _image_input(settings, model)
    source = f"the file {path.name}"
    if settings.source is not None:
        source = settings.source
    weights = StartWeights(read_untrusted(path), source, model)
    checked_weights = check_weights(weights, model, licence, text, preprocess)
    for line in checked_weights.report.lines()[1:]:
        console.say(line)
    if preprocess is None and "." not in model:  # neither a flag nor a timm tag states mean and std
        mean, std = (
            " ".join(f"{value:g}" for value in values)
            for values in (checked_weights.input.mean, checked_weights.input.std)
        )
        console.say(
            f"note: images are normalised with --mean {mean} --std {std}; give both flags if the weights were trained "
            "with other values"
        )
    return checked_weights


def _image_input(settings: WeightsSettings, model: str) -> WeightsPreprocessing | None:
    """Return timm's preprocessing of a model with the values of --mean and --std; None if neither flag is given."""
    if settings.mean is None and settings.std is None:
        return None
    if settings.mean is None or settings.std is None or len(settings.mean) != 3 or len(settings.std) != 3:
        raise UserError("--mean and --std must be given together, with three numbers each, one per channel.")
    preprocess = replace(timm_preprocessing(model), mean=tuple(settings.mean), std=tuple(settings.std))
    Preprocessing.from_image_input((1, 1), preprocess)
    return preprocess


def _licence_text(settings: WeightsSettings) -> str:
    if settings.licence_text is None:
        return ""
    path = expand_user_path(settings.licence_text, "--licence-text")
    if not path.is_file():
        raise UserError(f"--licence-text: there is no file {str(path)!r}: give a file with the text of the licence.")
    text = read_decoded(path, MAX_LICENCE_BYTES).text.strip()
    if not text:
        raise UserError(f"--licence-text: {str(path)!r} is empty: give the text of the licence.")
    return text + "\n"


def _halve_precision_if_accurate(weights: CheckedWeights, console: Console) -> CheckedWeights:
    """Return 16-bit weights if they change the model's outputs by at most `MAX_DIFFERENCE`, else `weights`."""
    half_weights = to_half_precision(weights)
    if all(value.dtype == weights.state[name].dtype for name, value in half_weights.state.items()):
        return weights
    full_outputs, half_outputs = compute_outputs(weights, weights.state), compute_outputs(weights, half_weights.state)
    difference = float(((half_outputs - full_outputs).norm(dim=1) / full_outputs.norm(dim=1).clamp(min=1e-12)).max())
    same_classes = not weights.classes or bool((full_outputs.argmax(1) == half_outputs.argmax(1)).all())
    is_accurate = bool(torch.isfinite(half_outputs).all()) and difference <= MAX_DIFFERENCE and same_classes
    verdict = "stored with 16 bits" if is_accurate else "kept with 32 bits"
    console.say(
        f"with 16-bit weights, the outputs for {len(full_outputs)} photo crops differ by {difference:.2g}: {verdict}"
    )
    return half_weights if is_accurate else weights
