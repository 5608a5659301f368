"""Runs on clusters: what is started, what is refused, and the scripts."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from paucal.cli.main import main
from paucal.runner.elsewhere import packages
from paucal.runner.elsewhere.command import Command, command_of, without_flags
from paucal.runner.elsewhere.slurm import RequeuedCommand, submit
from paucal.runs import create_run
from paucal.types import UserError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command__begins_until_a_state_is_saved_and_then_resumes(here):
    argv = ["photos", "--on", "slurm", "--slurm", "a=1", "b=2", "--epochs", "3", "--devices=4", "--output", "runs/a"]
    command = command_of("train", argv, "runs/a", None)
    run = str(here / "runs" / "a")
    assert command == Command("train", ("photos", "--epochs", "3"), run, str(here))
    begin = ["train", "--output", run, "--overwrite", "photos", "--epochs", "3"]
    assert command.arguments() == begin
    folder = create_run(Path(run))
    assert command.arguments() == begin
    folder.last.write_bytes(b"state")
    assert command.arguments() == ["train", "--resume", run]


def test_command__without_output_reserves_the_next_run(here):
    first, second = (command_of("train", [], None, None).run for _ in range(2))
    assert [first, second] == [str(here / "runs" / number) for number in "12"]


def test_command__resumes_a_run_with_what_was_changed(here):
    folder = create_run(here / "runs" / "1")
    folder.write_yaml("config.yaml", {"settings": {}})
    command = command_of("train", ["--resume", "runs/1", "--workers", "2", "--on", "slurm"], None, "runs/1")
    assert command.arguments() == ["train", "--resume", str(folder.path), "--workers", "2"]
    folder.write_json("summary.json", {})
    with pytest.raises(UserError, match="is finished"):
        command_of("train", ["--resume", "runs/1"], None, "runs/1")


def test_command__never_replaces_a_run(here):
    create_run(here / "old")
    with pytest.raises(UserError, match="'old' exists already"):
        command_of("train", ["--output", "old"], "old", None)
    with pytest.raises(UserError, match="--overwrite is not supported with --on"):
        command_of("train", ["--overwrite", "--output", "new"], "new", None)


def test_command__begins_anew_what_was_killed_before_it_saved_anything(here):
    run = create_run(here / "a")
    run.write_yaml("config.yaml", {"settings": {}})
    assert command_of("train", [], "a", None).run == str(here / "a")
    run.card.write_text("{}")  # its first model
    with pytest.raises(UserError, match="'a' exists already"):
        command_of("train", [], "a", None)


def test_without_flags__takes_values_in_both_forms():
    flags, words = {"--a": False, "--many": True}, ["x", "--a", "1", "y", "--a=2", "z", "--many", "p", "q", "--b", "3"]
    assert without_flags(words, flags) == ["x", "y", "z", "--b", "3"]
    assert without_flags(["--many", "p", "q", "-b", "3", "--", "--a", "1"], flags) == ["-b", "3", "--", "--a", "1"]


def test_command__of_a_call_with_other_spellings(here):
    command = command_of("train", ["--print_script", "slurm", "--out", "r", "--", "-photos"], "r", None)
    assert command.begin_words() == ["train", "--output", str(here / "r"), "--overwrite", "--", "-photos"]


def test_slurm_script__asks_for_its_machines_and_goes_on_by_itself(here, capsys):
    words = ["pretrain", "photos", "--nodes", "2", "--devices", "8", "--output", "runs/a b", "--print-script", "slurm"]
    assert main([*words, "--slurm", "slurm_partition=gpu", "timeout_min=60", "mem_gb=16"]) == 0
    script = capsys.readouterr().out
    lines = script.splitlines()
    for name, value in {
        "nodes": 2,
        "ntasks-per-node": 8,
        "gpus-per-node": 8,
        "partition": "gpu",
        "time": 60,
        "mem": "16G",
    }.items():
        assert f"#SBATCH --{name}={value}" in lines
    assert "#SBATCH --signal=USR1@120" in lines
    assert f"then srun paucal pretrain --resume '{here}/runs/a b'" in lines
    assert f"else srun paucal pretrain --output '{here}/runs/a b' --overwrite photos" in lines
    assert f"#SBATCH --output='{here}/runs/a b.%j.log'" in lines
    assert (here / "runs").is_dir()  # else SLURM could not write the log
    stubs = 'srun() { echo "$@" >> calls; return 130; }; scontrol() { echo "$@" >> calls; }\n'
    done = subprocess.run(["bash"], input=stubs + script, text=True, env={"SLURM_JOB_ID": "7"}, check=False)
    assert done.returncode == 130
    calls = [f"paucal pretrain --output {here}/runs/a b --overwrite photos", "requeue 7"]
    assert (here / "calls").read_text().splitlines() == calls
    create_run(here / "runs" / "a b").write_json("summary.json", {})  # finished without a checkpoint
    assert subprocess.run(["bash"], input=stubs + script, text=True, check=False).returncode == 0
    assert (here / "calls").read_text().splitlines() == calls


def test_kuberay_job__begins_or_resumes_on_a_cluster_of_its_own(here, capsys):
    words = ["train", "my photos", "--nodes", "3", "--devices", "2", "--output", "runs/a"]
    assert main([*words, "--time-limit", "8h", "--print-script", "kuberay"]) == 0
    text = capsys.readouterr().out
    assert text.count("# change: ") == 8
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"], set(job)) == (
        "ray.io/v1",
        "RayJob",
        {"apiVersion", "kind", "metadata", "spec"},
    )
    assert re.fullmatch(r"paucal-train-a-[0-9a-f]{8}", job["metadata"]["name"])
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    for pod in (group["template"], cluster["headGroupSpec"]["template"]):
        (container,) = pod["spec"]["containers"]
        assert container["volumeMounts"] == [{"name": pod["spec"]["volumes"][0]["name"], "mountPath": str(here)}]
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
    stub = here / "paucal"
    stub.write_text('#!/bin/sh\necho "$@" >> calls\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    (here / "runs/a/checkpoints").mkdir(parents=True)
    for _ in range(2):
        subprocess.run(shlex.split(job["spec"]["entrypoint"]), env=environment, check=True)
        (here / "runs/a/checkpoints/last.ckpt").write_bytes(b"state")
    (here / "runs/a/summary.json").write_text("{}")
    subprocess.run(shlex.split(job["spec"]["entrypoint"]), env=environment, check=True)  # it is finished
    assert main(["train", "photos", "--output", str(here.parent / "b"), "--print-script", "kuberay"]) == 2
    assert "is not inside the current folder" in capsys.readouterr().err
    on_ray = "--on ray --devices 2 --nodes 3"
    assert (here / "calls").read_text().splitlines() == [
        f"train --output {here}/runs/a {on_ray} my photos --time-limit 8h",
        f"train --resume {here}/runs/a {on_ray}",
    ]


def test_slurm_script__reads_paths_and_values_as_they_are(here, capsys):
    words = ["train", "photos", "--print-script", "slurm"]
    assert main([*words, "--output", "50% #1", "--slurm", "account=0123", "comment=a b", "nice=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"#SBATCH --account=0123", "#SBATCH --comment='a b'", "#SBATCH --nice=7"} < set(lines)
    assert f"#SBATCH --output='{here}/50%% #1.%j.log'" in lines
    for path in ("a\nb", "a\\b"):
        assert main([*words, "--output", path]) == 2
        assert "control characters or backslashes" in capsys.readouterr().err
    assert main([*words, "--output", "a", "--slurm", "comment=a\nb"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err
    assert packages.slurm_options(["account=0123", "nodes=2"]) == {"account": "0123", "nodes": 2}


def test_requeued_command__does_not_compute_a_finished_run_anew(here, monkeypatch):
    monkeypatch.setattr(Command, "start", lambda self: pytest.fail("it was started"))
    create_run(here / "run").write_json("summary.json", {})
    assert RequeuedCommand(Command("train", (), str(here / "run"), str(here)))() == 0


def test_slurm__submits_a_job_that_may_reach_its_limit_often(here, monkeypatch):
    submitit = pytest.importorskip("submitit")
    for name in ("sbatch", "srun"):
        (here / name).write_text("#!/bin/sh\necho Submitted batch job 7\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    job = submit(Command("train", (), str(here / "run"), str(here)), 1, 1, False, {})
    assert job.job_id == "7"
    assert submitit.core.utils.DelayedSubmission.load(job.paths.submitted_pickle)._timeout_countdown == 1000


@pytest.mark.parametrize("verb", ["train", "pretrain", "detect", "segment"])
def test_on__is_refused_in_one_sentence(here, capsys, monkeypatch, verb):
    def failure(*words: str) -> str:
        assert main([verb, "photos", *words]) == 2
        return " ".join(capsys.readouterr().err.split())

    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    assert "SLURM is not installed on this machine" in failure("--on", "slurm")
    for flag in ("--on", "--print-script"):
        assert f"--time-limit is not supported with {flag} slurm: " in failure("--time-limit", "8h", flag, "slurm")
    assert "give --on slurm" in failure("--slurm", "a=1")
    assert "--print-script needs --output" in failure("--print-script", "slurm")
    assert "expected NAME=VALUE" in failure("--on", "slurm", "--slurm", "gpu")
    assert "give --on slurm" in failure("--on", "ray", "--slurm", "a=1")
    assert "is on object storage, but --on needs" in failure("--on", "ray", "--output", "s3://bucket/run")
    assert "expected one of 'slurm', 'ray'" in failure("--on", "moon")
    Path("config.yaml").write_text("on: ray\n")  # the started command would read it again
    assert "unknown key 'on'" in failure("--config", "config.yaml")
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for place in ("slurm", "ray"):
        assert f'pip install "paucal[{place}]"' in failure("--on", place)
    assert not (here / "runs").exists()


def test_on__with_print_config_starts_nothing(here, capsys, monkeypatch):
    monkeypatch.setattr(packages, "PACKAGE_BY_CLUSTER", {"ray": "no_such_package"})
    assert main(["train", "--on", "ray", "--model", "vit_mini", "--init", "none", "--print-config"]) == 0
    assert "model: vit_mini  # " in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (
            None,
            "--on ray: no cluster could be started on this machine (no time): try again when the machine is less busy, "
            "or remove --on ray.",
        ),
        ("far:1", "--on ray: the cluster cannot be reached (no time): check RAY_ADDRESS."),
    ],
)
def test_connect_to_ray__says_in_one_sentence_what_failed(monkeypatch, address, expected):
    class Unavailable:
        def is_initialized(self):
            return False

        def init(self, **settings):
            raise Exception("no\n  time")  # as Ray does

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError) as caught:
        packages.connect_to_ray(Unavailable())
    assert str(caught.value) == expected
