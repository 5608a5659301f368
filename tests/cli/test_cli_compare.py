"""`paucal compare` as people call it: small grids of small runs, killed, grown, shared and refused."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import paucal
from cli.calls import call, failure, make_photos, table
from paucal.runner.elsewhere import packages
from paucal.runs.weights import read_weights
from paucal.types import UserError
from paucal.verbs.compare import preparation
from paucal.verbs.compare._work import work
from paucal.verbs.compare.findings import read_grid_results
from paucal.verbs.compare.grid import cells_of, read_grid, state_of
from paucal.verbs.compare.running import RayWorkers, SlurmWorkers

TINY = ["--img-size", "16", "-j", "0", "--models", "vit_mini", "--model-args", "depth=1", "--epochs", "2"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", classes=2, greys=(90, 40, 60))


def hits(run: Path) -> list[bool]:
    return [row["label"] == row["predicted"] for row in table(run / "evaluation" / "test" / "predictions.csv")]


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.parent.name: read_weights(path / "model.safetensors") for path in sorted(folder.glob("cells/*/run"))}


def assert_same_runs(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name, state in first.items():
        assert all(torch.equal(value, second[name][key]) for key, value in state.items()), name
    assert (one / "differences.csv").read_text() == (two / "differences.csv").read_text()


def test_compare__says_what_its_runs_say(photos, tmp_path, capsys, monkeypatch):
    out = tmp_path / "grid"
    assert call("compare", photos, *TINY, "--seeds", "0", "--output", out) == 0
    said = capsys.readouterr().out
    runs = {row["way"]: row for row in table(out / "runs.csv")}
    assert set(runs) == {"supervised", "drloc"}
    shares = {way: np.mean(hits(out / row["folder"])) for way, row in runs.items()}
    gain = table(out / "differences.csv")[0]
    assert float(gain["difference"]) == pytest.approx(shares["drloc"] - shares["supervised"])
    assert (gain["arm"], gain["against"]) == ("drloc", "supervised")
    assert (gain["clear"], gain["seeds"]) == ("0", "1")
    assert float(runs["drloc"]["parameters"]) == float(runs["supervised"]["parameters"]) > 0
    assert "2 runs to compute with 1 worker, about" in said
    assert "2 of 2: drloc" in said
    assert "One seed cannot show" in said or "the predictions are the same" in said
    assert "All runs trained for 2 epochs; their training times differ" in said
    page = (out / "comparison.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "paucal compare" in page
    assert 'class="clear"' not in page  # one seed carries nothing
    listed = [line for line in (out / "commands.txt").read_text().splitlines() if line.startswith("paucal train")]
    assert len(listed) == 2
    assert "--method drloc" in listed[1]
    before = sorted((path, path.stat().st_mtime_ns) for path in out.glob("cells/*/run/model.safetensors"))
    assert call("compare", "--resume", out) == 0  # nothing is trained again
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    for words in (["--resume", out], [photos, *TINY, "--seeds", "0", "--output", out]):
        assert call("compare", *words, "--on", "slurm") == 0  # what is done is shown where no worker can be started
    assert "SLURM is not installed on this machine" in failure(
        capsys, "compare", photos, *TINY, "--seeds", "1", "--output", out, "--on", "slurm"
    )
    capsys.readouterr()
    assert call("compare", "--resume", out, "--jobs", "0") == 0
    assert "2 runs left to compute" in capsys.readouterr().out  # the seed was stored, and may be computed elsewhere
    assert before == sorted((path, path.stat().st_mtime_ns) for path in out.glob("cells/*/run/model.safetensors"))
    (photos / "class0" / "0.png").unlink()
    assert "labels differ from those" in failure(capsys, "compare", photos, *TINY, "--seeds", "0", "--output", out)
    assert "labels differ from those" in failure(capsys, "compare", "--resume", out)  # whose other runs would see fewer
    assert call("compare", "--resume", out, "--jobs", "0") == 0
    assert "--epochs was 2, now 3" in failure(
        capsys, "compare", make_photos(photos.parent / "b" / "photos", classes=2, greys=(90, 40, 60)), *TINY[:-1], "3",
        "--output", out,
    )  # fmt: skip


def test_compare__resamples_the_groups_that_its_runs_store(tmp_path, capsys):
    photos = make_photos(tmp_path / "photos", classes=2, greys=(90, 40, 60))
    words = [photos, *TINY[:-1], "1", "--seeds", "0", "--group-by", "[0-9]+[.]png"]
    assert call("compare", *words, "--output", tmp_path / "grid") == 0
    said = capsys.readouterr().out
    assert "4 test images in 2 groups" in " ".join(said.split())
    assert "too narrow" not in said
    rows = table(next((tmp_path / "grid").glob("cells/*/run/split.csv")))
    assert len({(row["group"], Path(row["key"]).name) for row in rows}) == len({row["group"] for row in rows}) == 12


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--methods", "supervised", "supervized"], "did you mean 'supervised'"),
        (["--methods", "drloc", "drloc"], "'drloc' is given twice"),
        (["--labels", "maps/"], "expected fractions of the training images such as 10%"),
        (["--labels", "0%"], "expected fractions"),
        (["--seed", "3"], "did you mean --seeds"),
        (
            ["--drloc-weight", "0.1", "--methods", "supervised"],
            "--drloc-weight has no effect on any of the arms",
        ),
        (["--arms", "light --method drloc"], "expected 'NAME: FLAGS of paucal train'"),
        (["--arms", "light: --method drloc --drloc-wait 1"], "did you mean --drloc-weight"),
        (["--slurm", "a=1"], "add --on slurm"),
        (["--seeds", "-1"], "--seeds"),
        (["--resume", "nowhere"], "remove DATA and the flags of 'paucal train'"),
        (["--val-fraction", "0", "--lrs", "0.1", "0.01"], "--lrs needs validation images"),
    ],
)
def test_compare__mistakes_are_one_sentence_and_leave_nothing(photos, tmp_path, capsys, words, told):
    assert told in failure(capsys, "compare", photos, *TINY, *words, "--output", tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_compare__without_a_folder_takes_the_next_one_that_no_other_call_has(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["compare", photos, *TINY, "--seeds", "0", "--jobs", "0"]
    assert call(*words) == 0
    settle = preparation._forecast_seconds

    def slow(*parts):
        Path("runs/compare-2").mkdir()  # by another call, while this one is still measuring
        return settle(*parts)

    monkeypatch.setattr(preparation, "_forecast_seconds", slow)
    assert call(*words) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["compare-1", "compare-2", "compare-3"]
    assert not list(Path("runs/compare-2").iterdir())
    assert "paucal compare --resume runs/compare-3" in capsys.readouterr().out


def test_compare__of_nothing_is_refused(photos, tmp_path, capsys):
    quick = {"img_size": 16, "model_args": ["depth=1"], "models": ["vit_mini"], "epochs": 1, "workers": 0}
    for nothing in ({"methods": []}, {"seeds": []}):
        with pytest.raises(paucal.UserError, match=f"--{next(iter(nothing))}"):
            paucal.compare(photos, **{**quick, **nothing})
    with pytest.raises(TypeError, match="no setting 'seedz'"):
        paucal.compare(photos, seedz=[1])
    one = {"light": {"method": "drloc"}}
    with pytest.raises(TypeError, match="ways is the old name of arms"):
        paucal.compare(photos, arms=one, ways=one)
    for name in ("arms", "ways"):
        with pytest.raises(paucal.UserError, match="'light' sets fraction, which the comparison also varies"):
            paucal.compare(photos, **{name: {"light": {"fraction": 0.5}}}, labels=["50%"], **quick)
    assert "contains no comparison" in failure(capsys, "compare", "--resume", tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    told = failure(capsys, "compare", photos, *TINY, "--output", tmp_path / "other")
    assert "is not empty and is not a comparison" in told


def test_workers__without_slurm_or_ray_are_refused_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    with pytest.raises(paucal.UserError, match="SLURM is not installed on this machine"):
        SlurmWorkers(tmp_path, 1)

    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "paucal\[ray\]"'):
        RayWorkers(tmp_path, 1, 1)
    with pytest.raises(UserError, match=r'pip install "paucal\[slurm\]"'):
        SlurmWorkers(tmp_path, 1)
    with pytest.raises(UserError, match="NAME=VALUE"):
        packages.slurm_options(["gpus"])


@pytest.mark.parametrize("words", [["compare", "photos"], ["study", "drloc-table-9"]])
def test_workers__that_cannot_be_started_are_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    assert "SLURM is not installed on this machine" in failure(capsys, *words, "--on", "slurm")
    assert "expected NAME=VALUE" in failure(capsys, *words, "--on", "slurm", "--jobs", "0", "--slurm", "gpus")
    assert "add --on slurm" in failure(capsys, *words, "--slurm", "gpus=1")
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    assert 'pip install "paucal[ray]"' in failure(capsys, *words, "--on", "ray")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_compare__a_failed_run_is_shown_as_failed_and_tried_again_when_asked(photos, tmp_path, capsys, monkeypatch):
    out, job = tmp_path / "grid", "paucal.verbs.compare._work.begin"
    begin = paucal.runner.life.begin

    def broken(kind, settings, *more):
        if settings.method == "drloc":
            raise paucal.UserError("no luck today.")
        return begin(kind, settings, *more)

    with monkeypatch.context() as patch:
        patch.setattr(job, broken)
        assert call("compare", photos, *TINY, "--seeds", "0", "--output", out) == 1
    said = capsys.readouterr().out
    assert "drloc, vit_mini, seed 0 failed: no luck today." in said
    assert "0 of 1, 1 failed" in said
    assert "no luck today." in (out / "comparison.html").read_text()
    assert call("compare", "--resume", out) == 1  # it is not tried again of itself
    assert call("compare", "--resume", out, "--retry") == 0
    assert "trying 1 failed run again" in capsys.readouterr().out


def start(*words) -> subprocess.Popen:
    # Else runs as short as these save nothing before they end.
    often = "from paucal.training.keeper import RunKeeper; RunKeeper._save_is_due = lambda *_: True"
    program = f"import sys; {often}; from paucal.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], start_new_session=True)


def kill_half_way(process: subprocess.Popen, out: Path) -> None:
    """Kill a comparison, and all workers it has, once one run is done and another one has saved a state."""
    while process.poll() is None:
        if (out / "grid.json").is_file():
            states = {cell: state_of(cell).name for cell in cells_of(read_grid(out))}
            running = [cell for cell, name in states.items() if name == "running"]
            if "done" in states.values() and any(cell.run.last.exists() for cell in running):
                break
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_compare__killed_half_way_shared_and_grown_equals_uninterrupted(photos, tmp_path, capsys):
    flags = [photos, *TINY[:-1], "25"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert call("compare", *flags, "--seeds", "0", "1", "--output", straight) == 0
    process = start("compare", *flags, "--seeds", "0", "--output", killed)
    kill_half_way(process, killed)
    assert {state_of(cell).name for cell in cells_of(read_grid(killed))} == {"done", "stopped"}
    # Two real workers go on, and a seed more.
    assert call("compare", *flags, "--seeds", "0", "1", "--jobs", "2", "--output", killed) == 0
    assert "started 2 worker processes" in capsys.readouterr().out
    assert_same_runs(straight, killed)


@pytest.mark.slow
def test_compare__a_killed_worker_is_replaced(photos, tmp_path, capsys):
    out = tmp_path / "grid"
    process = start("compare", photos, *TINY[:-1], "30", "--seeds", "0", "1", "--jobs", "2", "--output", out)
    while not list(out.glob("cells/*/lock.json")) and process.poll() is None:
        time.sleep(0.02)
    holder = json.loads(next(iter(out.glob("cells/*/lock.json"))).read_text())
    os.kill(holder["pid"], signal.SIGKILL)
    assert process.wait() == 0
    assert all(state_of(cell).name == "done" for cell in cells_of(read_grid(out)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_compare__on_other_workers_has_equal_numbers(photos, tmp_path, kind, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # by default 15, with which they stand still on a busy machine
    package = {"slurm": "submitit", "ray": "ray"}[kind]
    if find_spec(package) is None:  # it is not imported, since Ray reads its settings when it is
        pytest.skip(f"{package} is not installed")
    here, there = tmp_path / "here", tmp_path / "there"
    for out, jobs in ((here, "1"), (there, "0")):
        assert call("compare", photos, *TINY, "--seeds", "0", "--jobs", jobs, "--output", out) == 0
    team = SlurmWorkers(there, 2, cluster="local") if kind == "slurm" else RayWorkers(there, 2, 1)
    assert team.describe()
    while team.count_unfinished():
        time.sleep(0.2)
    grid = read_grid(there)
    assert all(state_of(cell).name == "done" for cell in cells_of(grid))
    assert call("compare", "--resume", there) == 0
    assert_same_runs(here, there)


@pytest.mark.slow
def test_compare__in_python_with_shares_rates_and_named_ways(photos, tmp_path):
    quick = {"img_size": 16, "model_args": ["depth=1"], "models": ["vit_mini"], "epochs": 1, "workers": 0}
    found = paucal.compare(
        photos,
        methods=["supervised"],
        arms={"light": {"method": "drloc", "drloc_weight": 0.1}},
        labels=["50%", "100%"],
        lrs=[1e-3, 1e-2],
        seeds=[0, 1],
        output=tmp_path / "grid",
        **quick,
    )
    assert set(found.scores) == {
        f"{way}, vit_mini, {share} of the images" for way in ("supervised", "light") for share in ("50%", "100%")
    }
    assert found.settled
    assert len(found.differences) == 2
    rows = table(Path(found) / "runs.csv")
    assert len(rows) == 4 * 2 + 4  # two rates with the first seed, the chosen one with the second
    for one in found.findings.arms:
        tried = {float(row["lr"]) for row in rows if row["arm"] == one.arm.name and row["seed"] == "0"}
        assert tried == {1e-3, 1e-2}
        assert one.rate in tried
    with (Path(found) / "arms.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4


def test_findings__of_a_grid_that_is_half_done_and_damaged(photos, tmp_path, capsys):
    out = tmp_path / "grid"
    assert call("compare", photos, *TINY, "--seeds", "0", "--jobs", "0", "--output", out) == 0
    assert "2 runs left to compute; resume with: paucal compare --resume" in capsys.readouterr().out
    grid = read_grid(out)
    first, second = cells_of(grid)

    def compute(cell, threads):
        cell.run.path.mkdir(parents=True)
        cell.run.write_json("summary.json", {"seconds": 1})
        return True

    assert work(out, compute)
    findings = read_grid_results(grid)
    assert set(findings.unreadable) == {first.name, second.name}
    assert {state.name for state in findings.states.values()} == {"done"}
    assert call("compare", "--resume", out) == 0
    assert "is left out" in capsys.readouterr().out
