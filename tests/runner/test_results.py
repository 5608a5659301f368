"""The last step of a run."""

from paucal.runner.console import RecordingConsole
from paucal.runner.results import publish_results
from paucal.runs import RunFolder


def test_results__are_the_scores_then_the_files_then_what_to_do_next(tmp_path):
    run, console = RunFolder(tmp_path), RecordingConsole()
    page = tmp_path / "report.html"
    publish_results(run, console, {"title": "cells"}, lambda _: page, ["mean IoU: 80 %"], "plots/", ["do this"])
    assert run.read_json("summary.json") == {"title": "cells"}
    assert console.said == [
        "",
        "mean IoU: 80 %",
        f"results are in {tmp_path}: report.html (open it in a browser), model.safetensors, plots/",
        "try next:",
        "  do this",
    ]
