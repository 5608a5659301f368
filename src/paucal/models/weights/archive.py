"""Archives of weights for other machines: an uncompressed zip with tensors, card, licence and checksums."""

import hashlib
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import safetensors.torch
from safetensors import SafetensorError

from paucal.backbones.weights.inputs import WeightsPreprocessing
from paucal.backbones.weights.start import StartWeights
from paucal.models.preprocessing import Preprocessing
from paucal.models.weights.adding import CheckedWeights, check_weights
from paucal.models.weights.store import MAX_CARD_BYTES, MAX_LICENCE_BYTES, parse_card
from paucal.reading import parse_json, require_regular
from paucal.runs.weights import MAX_WEIGHTS_BYTES
from paucal.types import UserError

WEIGHTS_ENTRY, CARD_ENTRY, LICENCE_ENTRY = "weights.safetensors", "card.json", "LICENCE.txt"
ARCHIVE_SUFFIX = ".weights.zip"  # end of an archive's file name
_MAX_ENTRY_BYTES = {WEIGHTS_ENTRY: MAX_WEIGHTS_BYTES, CARD_ENTRY: MAX_CARD_BYTES, LICENCE_ENTRY: MAX_LICENCE_BYTES}
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same weights give the same archive


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive of weights; a damaged file is recognised by its suffix."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            return {CARD_ENTRY, WEIGHTS_ENTRY} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return path.name.endswith(ARCHIVE_SUFFIX)


def write_archive(file: BinaryIO, weights: CheckedWeights) -> None:
    """Write an archive of weights, which must have a licence text."""
    tensors = {name: value.contiguous().clone() for name, value in weights.state.items()}
    tensor_bytes = safetensors.torch.save(tensors, metadata={"format": "pt"})
    card = {**asdict(weights.card(hashlib.sha256(tensor_bytes).hexdigest(), len(tensor_bytes))), "licence_text": ""}
    licence_bytes = weights.licence_text.encode()
    card["licence_sha256"] = hashlib.sha256(licence_bytes).hexdigest()
    card_bytes = json.dumps(card, indent=1, ensure_ascii=False).encode()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in ((CARD_ENTRY, card_bytes), (LICENCE_ENTRY, licence_bytes), (WEIGHTS_ENTRY, tensor_bytes)):
            archive.writestr(zipfile.ZipInfo(name, _ENTRY_DATE), data)


def read_archive(path: Path) -> CheckedWeights:
    """Read an untrusted archive, and check its weights by loading them into their model."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            contents = {name: _read_entry(archive, name, path) for name in _MAX_ENTRY_BYTES}
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, NotImplementedError, RuntimeError) as problem:
        raise UserError(
            f"{str(path)!r} is damaged, truncated or not an archive of weights: copy the archive again."
        ) from problem
    try:
        card_values = parse_json(contents[CARD_ENTRY])
        licence_digest = card_values.pop("licence_sha256")
        card = parse_card(json.dumps(card_values))
        image_input = WeightsPreprocessing.from_dict(card.input)
        Preprocessing.from_image_input((1, 1), image_input)  # raises an error for values out of range
    except (ValueError, TypeError, AttributeError, KeyError) as problem:
        raise UserError(f"{str(path)!r} has an invalid card ({problem}): pack the weights again.") from problem
    digests = [hashlib.sha256(contents[name]).hexdigest() for name in (WEIGHTS_ENTRY, LICENCE_ENTRY)]
    if digests != [card.sha256, licence_digest]:
        raise UserError(
            f"{str(path)!r} is damaged: its content does not match the checksums in its card; copy the archive again."
        )
    try:
        tree, text = safetensors.torch.load(contents[WEIGHTS_ENTRY]), contents[LICENCE_ENTRY].decode()
    except (SafetensorError, UnicodeDecodeError, ValueError) as problem:
        raise UserError(
            f"the weights in {str(path)!r} are not a valid safetensors file ({problem}): pack the weights again."
        ) from problem
    return check_weights(StartWeights(tree, card.source), card.name, card.licence, text, image_input)


def _read_entry(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return the bytes of an entry; compressed entries are refused, since they could unpack to gigabytes."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(_MAX_ENTRY_BYTES[name], path.stat().st_size):
        raise UserError(
            f"{str(path)!r} was not written by 'paucal weights pack', since its {name} is compressed or too large: "
            "pack the weights again."
        )
    return archive.read(entry)
