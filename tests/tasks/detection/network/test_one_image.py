"""A detector for export: its table holds what the detector itself answers, also as a file of its own."""

from dataclasses import replace

import onnxruntime
import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.export.onnx_model import to_onnx
from paucal.export.program import Graph, trace_program
from paucal.models.preprocessing import Preprocessing
from paucal.tasks.detection.model import DetectorCard
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.network.one_image import OneImageDetector
from paucal.tasks.detection.network.options import DetectorOptions

SPEC = BackboneSpec("resnet10t", 0, image_size=(128, 128))
DILATED = replace(SPEC, arguments={"output_stride": 16})  # its last average pool pads by the side of an image
LITE = BackboneSpec("tf_efficientnet_lite0", 0, image_size=(128, 128))  # its padding depends on the side of an image
TINY = {"channels": 16, "head_dim": 16, "proposals": 64, "most": 30, "least_score": 0.01, "finest": 8, "anchor": 4}
KINDS = {
    "plain": {},
    "aligned, with masks": {"pooling": "aligned", "masks": True},
    "cascade": {"cascade": True},
    "cascade per class, with masks": {"cascade": True, "cascade_boxes": "per-class", "masks": True},
    "few objects": {"least_score": 0.37},
    "TensorFlow's padding": {},
    "dilated": {},
    "none": {"least_score": 0.99, "masks": True},
}


def made(kind):
    torch.manual_seed(0)
    spec = {"TensorFlow's padding": LITE, "dilated": DILATED}.get(kind, SPEC)
    detector = build_detector(spec, 3, DetectorOptions(**{**TINY, **KINDS[kind]})).eval()
    return detector, OneImageDetector(detector)


@pytest.mark.parametrize("kind", KINDS)
def test_table__holds_what_the_detector_answers(kind):
    detector, table_of = made(kind)
    for size in ((100, 120), (128, 96), (75, 200)):
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected, table = detector(image, [size])[0], table_of(image)
        count = len(expected["scores"])
        order = expected["scores"].argsort(descending=True, stable=True)
        torch.testing.assert_close(table[:count, :4], expected["boxes"][order], atol=1e-3, rtol=0)
        torch.testing.assert_close(table[:count, 4], expected["scores"][order])
        assert torch.equal(table[:count, 5].long(), expected["labels"][order])
        assert len(table) == 30
        assert not table[count:, :5].any()
        if "masks" in expected:
            torch.testing.assert_close(table[:count, 6:], expected["masks"][order].flatten(1))
    if kind in ("few objects", "none"):
        assert count < 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["aligned, with masks", "TensorFlow's padding", "dilated", "none"])
def test_files__answer_for_images_of_any_size(kind):
    _, table_of = made(kind)
    graph = Graph(table_of, torch.zeros(1, 3, 100, 123), {2: "height", 3: "width"}, "images", "objects")
    card = DetectorCard(SPEC, ("a", "b", "c"), Preprocessing((128, 128), 1.0, "bilinear", (0.5,) * 3, (0.5,) * 3))
    program = trace_program(graph)
    session = onnxruntime.InferenceSession(to_onnx(program, graph, card))
    for size in ((100, 120), (75, 200), (320, 96)):
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected = table_of(image)
        is_object = expected[:, 4] > 0
        assert is_object.any() == (kind != "none")
        for answer in (program.module()(image), torch.from_numpy(session.run(None, {"images": image.numpy()})[0])):
            torch.testing.assert_close(answer[:, :5], expected[:, :5], atol=1e-3, rtol=1e-7)
            torch.testing.assert_close(answer[is_object], expected[is_object], atol=1e-3, rtol=1e-7)
