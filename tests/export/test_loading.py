"""`paucal.load` of exported files."""

import pytest

from paucal.export.reading import load_model
from paucal.types import UserError


def test_an_unknown_device_is_refused_for_an_onnx_model_too(tmp_path) -> None:
    with pytest.raises(UserError, match="the device 'gpu' cannot be used on this machine"):
        load_model(tmp_path / "model.onnx", "gpu")
