"""Features on disk, found again by what they were computed from."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paucal.data.images import ImageSet
from paucal.data.stores import EncodedStore
from paucal.evaluation.protocols.classifier import count_broken, rows_at_once
from paucal.types import UserError

FORMAT = "2"  # of the files; a change in what features are needs another
_ENTRY, _RANKS = "features", "ranks"


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

    def read(self, key: str, order: NDArray[np.int64]) -> Tensor | None:
        """Return stored (N, D) features, or None where there are none or the file is damaged or holds no numbers.

        Args:
            key: of the features.
            order: (N,) rows wanted for the images in ascending order of their positions.

        Raises:
            UserError: the file under that name holds other features: of another model, or of other images.
        """
        path = self.path(key)
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                stored = (file.metadata() or {}).get("key")
                ranks, features = file.get_tensor(_RANKS), file.get_slice(_ENTRY)
                shape = tuple(features.get_shape())
                if stored != key or len(shape) != 2 or shape[0] != len(order) or not _is_order(ranks, len(order)):
                    raise UserError(
                        f"{str(path)!r} holds features of another model or of other images than its name says: "
                        "remove it."
                    )
                return _in_order(features, torch.from_numpy(order)[ranks], shape[1])
        except (SafetensorError, OSError):
            return None

    def write(self, key: str, features: Tensor, order: NDArray[np.int64]) -> None:
        """Store (N, D) features; arguments as for `read`."""
        path = self.path(key)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        ranks = torch.from_numpy(np.argsort(order, kind="stable"))
        content = {_ENTRY: features.contiguous(), _RANKS: ranks}
        # By name: for an open file everything is copied first. A crash of the machine may leave half a file behind,
        # which `read` takes for none.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            safetensors.torch.save_file(content, temporary, metadata={"key": key})
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _is_order(ranks: Tensor, count: int) -> bool:
    return ranks.dtype == torch.int64 and torch.equal(ranks.sort().values, torch.arange(count))


def _in_order(stored: Any, rows: Tensor, dim: int) -> Tensor | None:
    """Return what a file holds, each of its rows put where `rows` says; None where a value is no finite number."""
    features, step = None, rows_at_once(dim)
    for start in range(0, len(rows), step):
        part = stored[start : start + step]
        if count_broken(part):
            return None
        features = part.new_empty(len(rows), dim) if features is None else features
        features[rows[start : start + step]] = part
    return features
