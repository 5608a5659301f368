"""Who starts workers: what each of them is given; the workers themselves are in the tests of `paucal compare`."""

import pickle
import subprocess
from types import SimpleNamespace

import pytest
import torch

from paucal.runner.elsewhere import packages
from paucal.types import UserError
from paucal.verbs.compare import running
from paucal.verbs.compare._work import work_silently
from paucal.verbs.compare.running import ProcessWorkers


@pytest.mark.parametrize(
    ("allotted", "count", "given"),
    [(None, 2, ["0", "1", "0"]), ("5, 7", 2, ["5", "7", "5"]), ("GPU-a,GPU-b", 2, ["GPU-a", "GPU-b", "GPU-a"])],
)
def test_processes__share_out_the_devices_that_the_call_was_allotted(tmp_path, monkeypatch, allotted, count, given):
    seen = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if allotted is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allotted)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(subprocess, "Popen", lambda *words, env, **more: seen.append(env) or SimpleNamespace())
    ProcessWorkers(tmp_path, 3, 4, "cuda")
    assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == given
    assert {env["OMP_NUM_THREADS"] for env in seen} == {"4"}
    seen.clear()
    ProcessWorkers(tmp_path, 2, 4, "cpu")
    assert {env.get("CUDA_VISIBLE_DEVICES") for env in seen} == {allotted}


def test_slurm__jobs_of_earlier_versions_find_the_function_that_they_store_by_name():
    assert pickle.loads(b"cpaucal.verbs.compare._computing\nwork_silently\n.") is work_silently


@pytest.mark.parametrize(
    ("cluster", "device", "asked"),
    [
        ({"CPU": 64.0, "GPU": 8.0}, None, (4, 1)),  # though the machine that calls has none
        ({"CPU": 64.0, "GPU": 8.0}, "cpu", (4, 0)),
        ({"CPU": 2.0}, None, (2, 0)),
        ({"CPU": 64.0}, "cuda", (4, 1)),  # which waits for a GPU to come
    ],
)
def test_ray__is_asked_for_what_its_cluster_has(cluster, device, asked):
    assert tuple(packages.task_resources(cluster, 4, device).values()) == asked


def test_packages__that_are_there_and_broken_are_told_of(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=None))
    with pytest.raises(UserError, match="which is not installed"):  # a folder called ray
        running.require_workers("ray")

    def broken(name: str) -> None:
        raise ImportError("libx.so is missing")

    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: SimpleNamespace(origin="ray/__init__.py"))
    monkeypatch.setattr(packages.importlib, "import_module", broken)
    running.require_workers("ray")
    with pytest.raises(UserError, match=r"--on ray: the package ray cannot be imported \(libx.so is missing\)"):
        packages.import_package("ray")
