"""Features on disk, found again by what they were computed from."""

import hashlib
import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.data.stores import EncodedStore
from paucal.runs import write_atomically
from paucal.types import UserError

FORMAT = "1"  # of the files; a change in what features are needs another
_ENTRY = "features"


def default_folder() -> Path:
    """Return `paucal/features` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "paucal" / "features"


def images_fingerprint(images: ImageSet, indices: NDArray[np.int64]) -> str:
    """Return a digest of images, in their order.

    Pixels count where they are in memory, bytes where those are at hand, and path, size and time of change for
    files, so that a set too large for memory need not be read for it.
    """
    digest, store = hashlib.blake2b(digest_size=16), images.store
    for index in indices.tolist():
        if not isinstance(store, EncodedStore):
            pixels = np.asarray(store.read(index))
            digest.update(str(pixels.shape).encode())
            digest.update(pixels.tobytes())
            continue
        source = store.source(index)
        if isinstance(source, bytes):
            digest.update(hashlib.blake2b(source, digest_size=16).digest())
        else:
            found = source.stat()
            digest.update(f"{source.resolve()} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def feature_key(subject: str, images: str, kind: str, dtype: torch.dtype) -> str:
    """Return the key of features: model with preprocessing, images, kind and precision."""
    return hashlib.blake2b(" ".join((FORMAT, subject, images, kind, str(dtype))).encode(), digest_size=20).hexdigest()


class FeatureCache:
    """A folder of features, one file per key.

    Args:
        folder: made where it is missing; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def path(self, key: str) -> Path | None:
        """Return the file of a key."""
        return None if self.folder is None else self.folder / f"{key}.safetensors"

    def read(self, key: str, rows: int) -> Tensor | None:
        """Return stored (rows, D) features, or None where there are none or the file is damaged or holds no numbers.

        Raises:
            UserError: the file under that name holds other features: of another model, or of other images.
        """
        path = self.path(key)
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                stored = (file.metadata() or {}).get("key")
                features = file.get_tensor(_ENTRY)
        except (SafetensorError, OSError):
            return None
        if stored != key or features.ndim != 2 or len(features) != rows:
            raise UserError(
                f"{str(path)!r} holds features of another model or of other images than its name says: remove it."
            )
        return features if torch.isfinite(features).all() else None

    def write(self, key: str, features: Tensor) -> None:
        """Store (N, D) features."""
        path = self.path(key)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        content = safetensors.torch.save({_ENTRY: features.contiguous()}, metadata={"key": key})
        write_atomically(path, lambda file: file.write(content))
