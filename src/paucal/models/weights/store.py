"""The weights that the user has added to this machine, stored in the user's cache folder.

The weights of each model have a card `NAME.json`, and their tensors are in a safetensors file that is named by the
file's SHA-256. Neither torch nor timm is imported here.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paucal.models.weights.table import has_terms
from paucal.reading import parse_json, read_text
from paucal.types import UserError
from paucal.writing import write_text

MAX_CARD_BYTES, MAX_LICENCE_BYTES, MAX_TEXT_LENGTH = 1 << 20, 1 << 19, 300  # the last is a number of characters
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class AddedWeights:
    """Metadata of pretrained weights that the user has added.

    Attributes:
        name: timm name of the model, with a tag if timm knows the weights.
        licence: Name of the licence.
        source: Origin of the weights, in one line.
        sha256: SHA-256 of the file of tensors.
        size: Size of the file of tensors in bytes.
        classes: Number of outputs of the classifier; 0 if there is no classifier.
        input: Preprocessing of images, as a dictionary of the fields of
            `backbones.weights.checkpoints.WeightsPreprocessing`.
        licence_text: Text of the licence; "" if the text is unknown.
    """

    name: str
    licence: str
    source: str
    sha256: str
    size: int
    classes: int
    input: Mapping[str, Any]
    licence_text: str = ""

    def __post_init__(self) -> None:
        types = {"name": str, "licence": str, "source": str, "sha256": str, "size": int, "classes": int}
        for key, expected_type in {**types, "input": dict, "licence_text": str}.items():
            if type(getattr(self, key)) is not expected_type:
                raise ValueError(f"{key} has the wrong type")
        require_short_text(self.licence, "licence")
        require_short_text(self.source, "source")
        if not _MODEL_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:80]!r} is not the name of a model")
        if not _SHA256.fullmatch(self.sha256) or self.size <= 0 or self.classes < 0:
            raise ValueError("sha256, size or classes has an invalid value")
        if len(self.licence_text.encode(errors="replace")) > MAX_LICENCE_BYTES:
            raise ValueError(f"the text of the licence has more than {MAX_LICENCE_BYTES} bytes")

    @property
    def has_terms(self) -> bool:
        """Whether the licence has special terms; runs use such weights only if the user names the weights."""
        return has_terms(self.licence)

    @property
    def content(self) -> Path:
        """Path of the safetensors file with the tensors."""
        return weights_folder() / f"{self.sha256}.safetensors"

    def verified_content(self) -> Path:
        """Return the path of the safetensors file with the tensors, after checking the file.

        Raises:
            UserError: the file is missing, or its size or checksum is wrong.
        """
        path = self.content
        if not path.is_file() or path.stat().st_size != self.size or file_digest(path) != self.sha256:
            raise UserError(
                f"the weights that were added for {self.name} are damaged or missing ({path}): "
                f"run 'paucal weights remove {self.name}' and add them again."
            )
        return path

    def describe(self) -> str:
        """Return name, size, licence and source as one line."""
        return f"{self.name}, {self.size / 1e6:.0f} MB, {self.licence}, {self.source}"


def require_short_text(text: str, what: str) -> str:
    """Return one line of text without surrounding space; raise a ValueError if the text is empty or too long."""
    text = text.strip()
    if not text or len(text) > MAX_TEXT_LENGTH or not text.isprintable():
        raise ValueError(f"the {what} {text[:40]!r} is invalid: expected one line of 1 to {MAX_TEXT_LENGTH} characters")
    return text


def weights_folder() -> Path:
    """Return the folder of added weights, `paucal/weights` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "weights"


def list_added() -> list[AddedWeights]:
    """Return the cards of all added weights, sorted by name; raise a UserError if a card is damaged."""
    return [_read_card(path) for path in sorted(weights_folder().glob("*.json"))]


def find_added(name: str) -> AddedWeights | None:
    """Return the card of the weights that were added under exactly this name; None if there are no such weights."""
    path = weights_folder() / f"{name}.json"
    return _read_card(path) if _MODEL_NAME.fullmatch(name) and path.is_file() else None


def parse_card(text: str) -> AddedWeights:
    """Parse the JSON text of an untrusted card; raise a ValueError if the card is invalid."""
    values = parse_json(text)
    if not isinstance(values, dict):
        raise ValueError("the file is not a card of weights")
    try:
        return AddedWeights(**values)
    except TypeError:
        raise ValueError("a field is missing or unknown") from None


def _read_card(path: Path) -> AddedWeights:
    try:
        card = parse_card(read_text(path, MAX_CARD_BYTES))
    except ValueError as problem:
        raise UserError(
            f"the card {str(path)!r} is damaged ({problem}): remove the card, and add the weights again."
        ) from None
    if card.name != path.stem:
        raise UserError(f"the card {str(path)!r} belongs to {card.name}: remove the card, and add the weights again.")
    return card


def write_card(card: AddedWeights) -> None:
    """Store the card of weights whose tensors have been stored before."""
    write_text(weights_folder() / f"{card.name}.json", json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n")


def remove_added(card: AddedWeights) -> int:
    """Remove added weights, and return the number of freed bytes, which is 0 if another card uses the same tensors."""
    (weights_folder() / f"{card.name}.json").unlink(missing_ok=True)
    if any(other.sha256 == card.sha256 for other in list_added()):
        return 0
    card.content.unlink(missing_ok=True)
    return card.size


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
