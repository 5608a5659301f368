"""What the tests of several verbs share."""

import shutil

import pytest

import paucal

_trained = []


@pytest.fixture(scope="module")
def digit_run(tmp_path_factory):
    """A classifier that was trained for an epoch on few digits: the same for all modules, each of which has a copy."""
    if not _trained:
        folder = tmp_path_factory.mktemp("digits") / "run"
        settings = {"model": "vit_mini", "model_args": ["depth=1"], "epochs": 1, "fraction": 0.05, "init": "none"}
        paucal.train("digits", output=folder, workers=0, device="cpu", **settings)
        _trained.append(folder)
    return shutil.copytree(_trained[0], tmp_path_factory.mktemp("run") / "run")
