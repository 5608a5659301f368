"""Photographs and masks in two folders of any names, whose files have the same names, distinguished by colours."""

from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from paucal.data.decode import UnreadableImage
from paucal.data.images import evenly_spaced
from paucal.data.masks.mask_files import pack_colours
from paucal.data.stores import Store

LOOKED_AT = 5  # pairs of files whose colours are counted
MASK_COLOURS, PHOTO_COLOURS = 32, 256  # largest number of colours in a mask, and smallest in a photograph


def twin_folders(keys: Sequence[str], store: Store) -> tuple[str, str] | None:
    """Return the folders of photographs and of their masks, recognised by colours and sizes; None for other sets."""
    files_by_folder: dict[str, dict[str, int]] = {}
    for index, key in enumerate(keys):
        folder, _, relative_path = key.partition("/")
        files_by_folder.setdefault(folder, {})[
            str(PurePosixPath(relative_path).with_suffix("")) if relative_path else ""
        ] = index
        if len(files_by_folder) > 2:
            return None
    folders = list(files_by_folder)
    if len(folders) != 2 or files_by_folder[folders[0]].keys() != files_by_folder[folders[1]].keys():
        return None
    names = sorted(files_by_folder[folders[0]])
    if 2 * len(names) != len(keys) or "" in names:
        return None
    sampled = [names[int(index)] for index in evenly_spaced(len(names), LOOKED_AT)]
    try:
        pictures = [[np.asarray(store.read(files_by_folder[folder][name])) for name in sampled] for folder in folders]
    except UnreadableImage:
        return None
    if any(first.shape[:2] != second.shape[:2] for first, second in zip(*pictures, strict=True)):
        return None
    colours = [[len(np.unique(pack_colours(picture))) for picture in side] for side in pictures]
    for photos, masks in ((0, 1), (1, 0)):
        if min(colours[photos]) > PHOTO_COLOURS and max(colours[masks]) <= MASK_COLOURS:
            return folders[photos], folders[masks]
    return None
