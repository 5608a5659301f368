"""One file that carries weights to another machine: tensors, card, licence and checksums in an uncompressed zip."""

import hashlib
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import safetensors.torch
from safetensors import SafetensorError

from paucal.backbones.weights.inputs import ImageInput
from paucal.backbones.weights.start import StartWeights
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.adding import CheckedWeights, check_weights
from paucal.models.weights.store import MAX_CARD, MAX_LICENCE, parse_card
from paucal.reading import parse_json, require_regular
from paucal.runs.weights import MAX_BYTES
from paucal.types import UserError

WEIGHTS, CARD, LICENCE = "weights.safetensors", "card.json", "LICENCE.txt"
ENDING = ".weights.zip"
_LIMITS = {WEIGHTS: MAX_BYTES, CARD: MAX_CARD, LICENCE: MAX_LICENCE}
_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal weights give equal archives


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive of weights; files of `torch.save` are zip archives of another kind."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            return {CARD, WEIGHTS} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return path.name.endswith(ENDING)  # a damaged archive


def write_archive(file: BinaryIO, weights: CheckedWeights) -> None:
    """Write an archive of checked weights, whose licence text is known."""
    tensors = {name: value.contiguous().clone() for name, value in weights.state.items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    card = {**asdict(weights.card(hashlib.sha256(content).hexdigest(), len(content))), "licence_text": ""}
    licence = weights.licence_text.encode()
    card["licence_sha256"] = hashlib.sha256(licence).hexdigest()
    text = json.dumps(card, indent=1, ensure_ascii=False).encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in ((CARD, text), (LICENCE, licence), (WEIGHTS, content)):
            archive.writestr(zipfile.ZipInfo(name, _DATE), data)


def read_archive(path: Path) -> CheckedWeights:
    """Read an archive from elsewhere, which may be damaged or hostile, and check its weights by loading them."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            parts = {name: _read_entry(archive, name, path) for name in _LIMITS}
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, NotImplementedError, RuntimeError) as problem:
        raise UserError(
            f"{str(path)!r} is damaged, cut short or not an archive of weights: copy it again."
        ) from problem
    try:
        card_values = parse_json(parts[CARD])
        licence_sum = card_values.pop("licence_sha256")
        card = parse_card(json.dumps(card_values))
        image_input = ImageInput.from_dict(card.input)
        Preprocessing.as_tested((1, 1), image_input)  # raises an error for values out of range
    except (ValueError, TypeError, AttributeError, KeyError) as problem:
        raise UserError(f"{str(path)!r} has a card that is invalid ({problem}): pack the weights again.") from problem
    digests = [hashlib.sha256(parts[name]).hexdigest() for name in (WEIGHTS, LICENCE)]
    if digests != [card.sha256, licence_sum]:
        raise UserError(f"{str(path)!r} is damaged: its content does not have the checksum of its card; copy it again.")
    try:
        tree, text = safetensors.torch.load(parts[WEIGHTS]), parts[LICENCE].decode()
    except (SafetensorError, UnicodeDecodeError, ValueError) as problem:
        raise UserError(
            f"{str(path)!r} has no valid safetensors file ({problem}): pack the weights again."
        ) from problem
    return check_weights(StartWeights(tree, card.source), card.name, card.licence, text, image_input)


def _read_entry(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return the bytes of an entry; compressed ones are refused, since they could unpack to gigabytes."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(_LIMITS[name], path.stat().st_size):
        raise UserError(
            f"{str(path)!r} is not an archive of 'paucal weights pack': its {name} is compressed or too large."
        )
    return archive.read(entry)
