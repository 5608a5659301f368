"""No test asks a network for weights: what is not on this machine is not there. None writes to the user's cache.

Where the tests run in several processes (`-n auto`), each has one thread: two that share the cores with all their
threads slow each other many times over.
"""

import atexit
import os
import shutil
import tempfile

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything loads the hub's client, and for the processes that tests start

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

_images = tempfile.mkdtemp(prefix="paucal-test-images-")
os.environ["PAUCAL_IMAGE_CACHE"] = _images
atexit.register(shutil.rmtree, _images, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Make what a test printed fit to be sent between processes: some print file names that are no UTF-8."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report
