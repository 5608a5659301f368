"""What a notebook shows: one bar for a call, replaced in place, and nothing twice."""

from pathlib import Path

import pytest

from paucal.runner.console import LoggedConsole, NotebookOutput, NullConsole, SilentConsole, in_notebook

CLOTHING = Path(__file__).parents[3] / "shared/data/clothing/train.parquet"


class Output(NotebookOutput):
    """Keeps what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, str]] = []

    def show(self, text: str, html: str) -> None:
        self.shown.append((text, html))


@pytest.mark.parametrize("kind", [SilentConsole, LoggedConsole])
def test_bar__shows_progress_and_is_gone_at_the_end(monkeypatch, kind):
    monkeypatch.setattr("paucal.runner.console.in_notebook", lambda: True)
    monkeypatch.setattr("paucal.runner.console.REFRESH_SECONDS", 0.0)
    console = kind()
    console._output = output = Output()
    with console.progress("reading <images>") as advance:
        for done in range(1, 4):
            advance(done, 3)
    assert [text for text, _ in output.shown[-4:]] == [*(f"reading <images> {n}/3" for n in (1, 2, 3)), ""]
    assert output.shown[-3][1] == '<div><progress value="2" max="3"></progress> reading &lt;images&gt; 2/3</div>'


def test_bar__is_not_redrawn_at_every_step(monkeypatch):
    monkeypatch.setattr("paucal.runner.console.in_notebook", lambda: True)
    console = SilentConsole()
    console._output = output = Output()
    with console.progress("reading") as advance:
        for done in range(1, 1001):
            advance(done, 1000)
    assert len(output.shown) < 50
    assert output.shown[-2][0] == "reading 1000/1000"


def test_outside_a_notebook__nothing_is_shown(capfd):
    assert not in_notebook()
    for console in (SilentConsole(), LoggedConsole(), NullConsole()):
        with console.progress("reading") as advance:
            advance(1, 2)
    assert capfd.readouterr() == ("", "")


CELLS = (
    """
import io, logging, os
import pandas, pyarrow.parquet as pq
import paucal
from lightning.pytorch import Callback
logging.basicConfig(level=logging.INFO)  # as some notebooks do, so that what is logged would be printed too
table = pq.read_table("{clothing}").to_pandas()
rows = [*table[table.label == 0].head(30).to_dict("records"), *table[table.label == 3].head(30).to_dict("records")]
for number, row in enumerate(rows):
    with open(f"{{number}}.jpg", "wb") as file:
        file.write(row["image"]["bytes"])
frame = pandas.DataFrame({{"path": [f"{{n}}.jpg" for n in range(len(rows))], "kind": ["a"] * 30 + ["b"] * 30}})
""",
    """
steps = []
class Watch(Callback):
    def on_train_batch_end(self, trainer, *_):
        steps.append(trainer.global_step)
run = paucal.train(frame, label="kind", epochs=3, model="vit_mini", init="none", img_size=32, callbacks=Watch())
""",
    "steps == list(range(1, len(steps) + 1)) and len(steps) > 2",
    "run.predictions.columns.tolist()",
    """
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
pipeline = make_pipeline(paucal.ImageEmbedder(img_size=64), LogisticRegression(max_iter=1000))
cross_val_score(pipeline, frame["path"], frame["kind"], cv=3).mean() > 0.5
""",
    """
model = paucal.ImageClassifier(epochs=0, img_size=64)
cross_val_score(model, frame["path"].tolist(), frame["kind"], cv=2).mean() > 0.5
""",
)


@pytest.mark.slow
@pytest.mark.skipif(not CLOTHING.exists(), reason="the photographs of clothes are not on this machine")
def test_notebook__trains_with_a_bar_and_prints_nothing_twice(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient runs the notebook")
    nbformat = pytest.importorskip("nbformat", reason="nbclient runs the notebook")
    pytest.importorskip("ipykernel", reason="nbclient runs the notebook in a kernel")
    pytest.importorskip("pandas", reason="the notebook has a DataFrame")
    cells = [nbformat.v4.new_code_cell(text.strip().format(clothing=CLOTHING) if n == 0 else text.strip())
             for n, text in enumerate(CELLS)]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    imports, training, seen, columns, pipeline, classifier = (cell.outputs for cell in notebook.cells)
    assert not [output for output in imports if "paucal" in output.get("text", "")]
    assert [output.output_type for output in training] == ["display_data"]
    assert training[0].data == {"text/plain": "", "text/html": ""}  # the bar is gone
    assert seen[0].data["text/plain"] == "True"
    assert columns[0].data["text/plain"] == "['key', 'label', 'predicted', 'confidence', 'p_a', 'p_b']"
    for outputs in (pipeline, classifier):
        assert [output.output_type for output in outputs] == ["display_data", "execute_result"]
        assert outputs[0].data == {"text/plain": "", "text/html": ""}
        assert outputs[1].data["text/plain"] == "np.True_"
