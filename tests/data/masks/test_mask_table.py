"""Tables with a row for each image that name its mask."""

from pathlib import Path

import pytest

from cli.calls import make_scenes
from paucal.data.masks.pairs import find_pairs
from paucal.types import UserError


def write_table(root: Path, text: str) -> Path:
    make_scenes(root, 2)
    (root / "table.csv").write_text(text)
    return root / "table.csv"


def test_rows_that_are_repeated__are_left_out_and_named(tmp_path: Path):
    row = "images/00.png,masks/00.png\n"
    pairs = find_pairs(write_table(tmp_path, f"image,mask\n{row}images/01.png,masks/01.png\n{row}"))
    assert [[mask.name for mask in pair.masks] for pair in pairs.pairs] == [["00.png"], ["01.png"]]
    assert "1 repeated row of table.csv was left out" in pairs.notes


@pytest.mark.parametrize("header", ["image,mask,Mask", "image,mask,image"])
def test_columns_of_one_name__are_refused(tmp_path: Path, header: str):
    table = write_table(tmp_path, f"{header}\nimages/00.png,masks/00.png,masks/01.png\n")
    with pytest.raises(UserError, match=r"table\.csv has several columns called '(mask|image)'; rename or remove"):
        find_pairs(table)
