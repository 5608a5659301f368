"""No test asks a network for weights: what is not on this machine is not there. None writes to the user's cache.

Where the tests run in several processes (`-n auto`), each has one thread: two that share the cores with all their
threads slow each other many times over.
"""

import atexit
import functools
import gc
import hashlib
import importlib
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from blank_figures import REPLACED, leave_blank

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything loads the hub's client, and for the processes that tests start

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # as in many containers
    # Without bytecode every process that a test starts compiles torch and timm again, for longer than most tests take.
    _bytecode = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.setdefault("PYTHONPYCACHEPREFIX", _bytecode)  # for processes that start from now on, xdist's too
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]

_images = tempfile.mkdtemp(prefix="paucal-test-images-")
os.environ["PAUCAL_IMAGE_CACHE"] = _images
atexit.register(shutil.rmtree, _images, ignore_errors=True)


COLLECTS_BACKWARDS = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"

if COLLECTS_BACKWARDS:
    # In a fresh environment each process would compile the same modules at the same time. Every other one starts with
    # what the rest imports last, and each finds the bytecode that its neighbour has written.
    for _name in ("hypothesis", "sympy", "scipy.stats", "sklearn.linear_model", "matplotlib.figure", "networkx"):
        with suppress(ImportError):
            importlib.import_module(_name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let every other process import the test modules from the last to the first, for the same reason."""
    report = yield
    if COLLECTS_BACKWARDS and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give all processes the same order of tests, as xdist demands."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parts)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Make what a test printed fit to be sent between processes: some print file names that are no UTF-8."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


def pytest_collection_finish():
    """Let the garbage collector leave out what exists before the first test, a million objects, and run less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_unconfigure():
    """Let the interpreter free all objects when it ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def unflushed_files():
    """Leave written files to the system: flushing them to disk, 50 times a run, takes as long as the run's steps.

    No test here outlives the machine's crash, which is what flushing is for.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def kept_operators():
    """Let torch collect the operators of ONNX, a third of the time of an export, once and not for each export."""
    import torch

    export = torch.onnx.export

    def export_with_kept_operators(*arguments, **options):
        with suppress(ImportError, AttributeError):  # of another version of torch
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            collect = vars(ONNXRegistry)["from_torchlib"]
            if isinstance(collect, classmethod):
                operators = functools.cache(collect.__get__(None, ONNXRegistry))
                patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(operators))
        return export(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", export_with_kept_operators)
        yield


@pytest.fixture(scope="module")
def kept_graphs():
    """Let the exports of a network that a module makes again share their ONNX files.

    For tests of what is done with the files. Everything that a file depends on counts: the modules and weights of the
    network, its input, the card, and the images that 8 bits are calibrated on.
    """
    from paucal.export import formats

    quantise, contents, quantised = formats.quantise, {}, {}

    def digest(arrays, *facts):
        found = hashlib.sha256(repr([*facts, [(array.dtype, array.shape) for array in arrays]]).encode())
        for array in arrays:
            found.update(array.tobytes())
        return found.digest()

    def onnx(source):
        graph, weights = source.graph, source.graph.module.state_dict()
        facts = graph.module, source.card.to_dict(), graph.dynamic, graph.input, graph.output, list(weights)
        key = digest([graph.example.numpy(), *(value.numpy() for value in weights.values())], *facts)
        if key not in contents:
            contents[key] = formats.to_onnx(source.program, graph, source.card)
        return contents[key]

    def quantise_once(content, name, images):
        images = [*images]
        key = digest(images, hashlib.sha256(content).hexdigest(), name)
        if key not in quantised:
            quantised[key] = quantise(content, name, images)
        return quantised[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats.ExportSource, "onnx", property(onnx))
        patch.setattr(formats, "quantise", quantise_once)
        yield


@pytest.fixture(scope="session")
def drawing():
    """Return a function whose context draws figures, for runs with all their pictures."""
    drawn = {name: pkgutil.resolve_name(name) for name in REPLACED}

    @contextmanager
    def context():
        with pytest.MonkeyPatch.context() as patch:
            for name, value in drawn.items():
                patch.setattr(name, value)
            yield

    return context


@pytest.fixture(scope="session")
def fast_tier(request) -> bool:
    """Whether slow tests are left out."""
    return not re.search(r"(?<!not )slow", request.config.option.markexpr)


@pytest.fixture(autouse=True, scope="module")
def blank_pictures(fast_tier, drawing):
    """Leave figures blank in the fast tier: they take three quarters of a run of a few steps.

    Their parts accept everything, as matplotlib does not see them. One run of each task is drawn, and so are the
    figures of tests with `drawn_pictures`, which look at them; the slow tier draws all.
    """
    with pytest.MonkeyPatch.context() as patch:
        if fast_tier:
            leave_blank(patch.setattr)
        yield


@pytest.fixture
def drawn_pictures(drawing):
    """Draw the figures of a test."""
    with drawing():
        yield
