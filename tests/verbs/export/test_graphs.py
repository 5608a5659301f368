"""By how much the answers of an exported file may differ from the model's."""

from types import SimpleNamespace

import pytest

from paucal.export.comparison import Comparison
from paucal.runner.console import SilentConsole
from paucal.types import UserError
from paucal.verbs.export.graphs import ComparisonImages, GraphWriter
from paucal.verbs.export.settings import ExportSettings


@pytest.mark.parametrize(
    ("unit", "largest", "kept"),
    [
        ("pixels", 0.09, True),
        ("pixels", 0.11, False),
        ("objects", 0.09, True),
        ("objects", 0.11, False),
        ("images", 0.09, False),
    ],
)
def test_weights_of_16_bits__may_differ_more_in_one_of_many_answers(unit, largest, kept, tmp_path, monkeypatch):
    writer = GraphWriter(SimpleNamespace(unit=unit, console=SilentConsole()), ExportSettings())
    writer.images = ComparisonImages([], None, "test images")
    found = Comparison(200, largest, 0.998, (1.0, 0.5))
    monkeypatch.setattr(writer, "_write_graph", lambda *file: None)
    monkeypatch.setattr(writer, "compare", lambda *file: found)
    if kept:
        assert writer.write("openvino", False, tmp_path) is found
    else:
        with pytest.raises(UserError, match=r"model\.xml differs from the model"):
            writer.write("openvino", False, tmp_path)
