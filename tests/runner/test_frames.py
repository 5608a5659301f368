"""DataFrames as DATA: what is stored, what a run keeps of it, and what is refused."""

import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import paucal
from paucal.data.sources.opening import open_images
from paucal.runner.frames import columns_of, encode_image, images_of_frame, replace_frame_by_path, store_frame
from paucal.types import UserError
from paucal.verbs.predict.answers import Predictions

NAMES = ("cat", "dog")
TINY = {"init": "none", "model": "vit_mini", "model_args": ["depth=1"], "epochs": 1, "workers": 0, "device": "cpu"}


def picture(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def paths_table(folder: Path, count: int = 24) -> pa.Table:
    """A table of paths in two folders, with a class, a patient and an empty cell."""
    paths = []
    for number in range(count):
        path = folder / f"s{number % 2}" / f"{number} é.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
        paths.append(str(path))
    classes = [NAMES[number // 2 % 2] for number in range(count)]
    return pa.table({"where": paths, "kind": classes, "patient": [None, *range(1, count)], "share": [0.5] * count})


class Interchange:
    """A table that has only the dataframe interchange protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True):
        return self.table.__dataframe__(nan_as_null, allow_copy)


@pytest.mark.parametrize("wrap", [lambda table: table, Interchange], ids=["arrow", "interchange"])
def test_table_of_paths__is_opened_like_a_csv_file(tmp_path, wrap):
    stored = store_frame(wrap(paths_table(tmp_path)), "where")
    assert stored["data_root"] == str(tmp_path)
    images = open_images(stored["data"], root=stored["data_root"], image_column="where", label_column="kind")
    assert images.keys[:3] == ["s0/0 é.png", "s1/1 é.png", "s0/2 é.png"]
    assert images.classes == NAMES
    assert images.labels[:5].tolist() == [0, 0, 1, 1, 0]
    assert images.columns["patient"][:3] == ["", "1", "2"]
    assert images.columns["share"][0] == "0.5"
    assert images.store.read(1).tobytes() == picture(1).tobytes()


def test_same_table__is_the_same_file(tmp_path):
    table = paths_table(tmp_path)
    first = store_frame(table, "where")["data"]
    assert store_frame(table, "where")["data"] == first
    assert store_frame(table.slice(1), "where")["data"] != first


def test_relative_paths__are_relative_to_the_working_directory_or_the_root(tmp_path, monkeypatch):
    paths_table(tmp_path)
    table = pa.table({"path": ["s0/0 é.png", "s1/1 é.png"]})
    monkeypatch.chdir(tmp_path)
    assert store_frame(table)["data_root"] == str(tmp_path)
    assert store_frame(table, root="elsewhere")["data_root"] == "elsewhere"
    assert images_of_frame(table, root="elsewhere") == ["elsewhere/s0/0 é.png", "elsewhere/s1/1 é.png"]


@pytest.mark.parametrize("form", ["bytes", "pictures", "arrays"])
def test_table_of_pictures__is_stored_without_loss(form):
    pictures = [picture(number) for number in range(4)]
    values: list = pictures
    if form == "bytes":
        values = []
        for one in pictures:
            buffer = io.BytesIO()
            one.save(buffer, "PNG")
            values.append(buffer.getvalue())
    elif form == "arrays":
        values = [np.asarray(one) for one in pictures]
    # Negative numbers are classes here, although they are missing labels in Parquet.
    table = {"image": values, "label": [-1, 1, -1, 1]}
    stored = store_frame(pa.table(table) if form == "bytes" else Columns(table))
    images = open_images(stored["data"])
    assert images.classes == ("-1", "1")
    assert images.labels.tolist() == [0, 1, 0, 1]
    assert [images.store.read(place).tobytes() for place in range(4)] == [one.tobytes() for one in pictures]


class Columns:
    """A table whose cells are any objects, as pandas has them."""

    def __init__(self, columns: dict) -> None:
        self.table, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> list:
        return self.table[name]

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True):
        raise TypeError("objects have no type of Arrow")


@pytest.mark.parametrize(
    ("table", "image", "words"),
    [
        (pa.table({"path": pa.array([], pa.string())}), None, "no rows"),
        (
            pa.table({"a": ["1.png"], "b": ["x"]}),
            None,
            r"none of the table's columns has a usual name for paths or images \('a', 'b'\)",
        ),
        (pa.table({"a": ["1.png"]}), "c", "no column 'c'; its columns are 'a'"),
        (pa.table({"path": [1.5]}), None, "image 1 is of type float, expected paths, PIL images"),
        (
            pa.table([pa.array(["1"]), pa.array(["2"])], names=["path", "path"]),
            None,
            "several columns with the same name",
        ),
    ],
)
def test_other_tables__are_refused(table, image, words):
    with pytest.raises(UserError, match=words):
        store_frame(table, image)


def test_settings__name_the_columns():
    table = pa.table({"file": ["a.png"], "kind": ["cat"]})
    data, settings = replace_frame_by_path(table, {"image": "file", "label": "kind", "seed": 3})
    assert Path(data).read_text() == "file,kind\na.png,cat\n"
    assert (settings["image_column"], settings["label_column"], settings["seed"]) == ("file", "kind", 3)
    assert replace_frame_by_path("photos/", {"image": "file"}) == ("photos/", {"image": "file"})


def test_run__keeps_its_table_and_is_evaluated_after_it_moved(tmp_path):
    table = paths_table(tmp_path / "photos")
    run = paucal.train(table, image="where", label="kind", output=tmp_path / "run", **TINY)
    (kept,) = (tmp_path / "run").glob("frame-*.csv")
    assert run.folder.joinpath("config.yaml").read_text().splitlines()[1] == f"  data: {kept}"
    assert kept.read_text().splitlines()[1] == "s0/0 é.png,cat,,0.5"
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "run", moved)
    judged = paucal.evaluate(moved)
    assert judged.metrics["top1"] == run.metrics["top1"]
    assert paucal.evaluate(moved, table, image="where", label="kind").metrics["top1"] == run.metrics["top1"]
    again = paucal.train(moved / kept.name, data_root=tmp_path / "photos", image_column="where", label_column="kind",
                         output=tmp_path / "again", **TINY)  # fmt: skip
    assert again.metrics == run.metrics


def test_predictions__become_tables(tmp_path):
    table = paths_table(tmp_path / "photos")
    run = paucal.train(table, image="where", label="kind", output=tmp_path / "run", **TINY)
    rows = paucal.predict(run, table.slice(0, 2), image="where")
    arrow = rows.to_arrow()
    assert arrow.column_names == ["path", "predicted", "confidence", "p_cat", "p_dog"]
    assert arrow["path"].to_pylist() == table["where"].to_pylist()[:2]
    assert arrow["p_cat"].to_pylist() == [row.probabilities["cat"] for row in rows]
    pytest.importorskip("pandas", reason="pandas makes the DataFrames")
    assert rows.to_pandas().to_dict("list") == arrow.to_pydict()
    stored = run.predictions
    assert list(stored.columns) == ["key", "label", "predicted", "confidence", "p_cat", "p_dog"]
    assert len(stored) == run.report.images
    assert np.mean(stored["label"] == stored["predicted"]) == pytest.approx(run.metrics["top1"])


def test_without_pandas__the_table_of_arrow_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pandas is not installed"):
        Predictions().to_pandas()


def test_pandas__with_paths_and_categories(tmp_path):
    pandas = pytest.importorskip("pandas", reason="a DataFrame of pandas is given")
    table = paths_table(tmp_path).to_pandas()
    table["where"], table["kind"] = table["where"].map(Path), table["kind"].astype("category")
    columns = columns_of(table)
    assert columns["kind"][:3] == ["cat", "cat", "dog"]
    stored = store_frame(table, "where")
    assert Path(stored["data"]).read_text().splitlines()[2] == "s1/1 é.png,cat,1,0.5"
    assert pandas.isna(table["patient"][0])


@pytest.mark.parametrize(("mode", "kind"), [("I", np.int32), ("F", np.float32)])
def test_encode_image__keeps_values_above_255(mode, kind):
    values = np.arange(0, 60000, 1000).reshape(6, 10).astype(kind)
    picture = Image.fromarray(values)
    assert picture.mode == mode
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_image(picture, 1)))), values)
