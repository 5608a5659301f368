"""The images of `paucal.predict_masks`, whose masks are named after them."""

import pytest
from PIL import Image

import paucal


def test_predict_masks__refuses_pictures_without_a_name_beside_files(tmp_path):
    path, picture = tmp_path / "a.png", Image.new("RGB", (4, 4))
    picture.save(path)
    with pytest.raises(paucal.UserError, match="masks are named after their image files"):
        paucal.predict_masks("runs/none", [path, picture], output=tmp_path / "out")
