"""Hugging Face's sets: saved to disk, and by name; Parquet with several labels; nothing is fetched here."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.conftest import encode
from paucal.data.sources import parquet as hub
from paucal.data.sources.opening import open_images
from paucal.types import UserError


def table(count: int, begin: int = 0) -> pa.Table:
    """As CIFAR-100 comes: two columns of classes, and names in the metadata."""
    names = {"fine_label": ["oak", "pine", "rose"], "coarse_label": ["flower", "tree"]}
    features = {
        "img": {"_type": "Image"},
        **{name: {"_type": "ClassLabel", "names": found} for name, found in names.items()},
    }
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pictures = [{"bytes": encode(begin + number), "path": None} for number in range(count)]
    fine = [number % 3 for number in range(count)]
    made = pa.table(
        {
            "img": pa.array(pictures, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            "fine_label": fine,
            "coarse_label": [0 if label == 2 else 1 for label in fine],
        }
    )
    return made.replace_schema_metadata(metadata)


def save_to_disk(folder: Path, found: pa.Table) -> None:
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, found.schema) as out,
    ):
        for batch in found.to_batches(max_chunksize=2):
            out.write_batch(batch)
    (folder / "state.json").write_text("{}")


def test_parquet__of_two_labels_names_the_flag_and_the_columns(tmp_path):
    pq.write_table(table(6), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"--label-column, such as fine_label or coarse_label\.$"):
        open_images(tmp_path)
    assert open_images(tmp_path, label_column="coarse_label").classes == ("flower", "tree")
    assert open_images(tmp_path, label_column="fine_label").labels.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(UserError, match=r"--image-column: .* no column 'photo' with bytes"):
        open_images(tmp_path, label_column="fine_label", image_column="photo")
    with pytest.raises(UserError, match=r"--image-column: .* no column 'fine_label' with bytes"):
        open_images(tmp_path, label_column="fine_label", image_column="fine_label")


def test_arrow__of_parts_is_what_parquet_is(tmp_path):
    for part, begin in (("train", 0), ("test", 50)):
        save_to_disk(tmp_path / "arrow" / part, table(6, begin))
        (tmp_path / "parquet" / part).mkdir(parents=True)
        pq.write_table(table(6, begin), tmp_path / "parquet" / part / "0000.parquet")
    saved, plain = (open_images(tmp_path / kind, label_column="fine_label") for kind in ("arrow", "parquet"))
    assert saved.classes == plain.classes == ("oak", "pine", "rose")
    assert saved.labels.tolist() == plain.labels.tolist()
    assert saved.declared_splits == plain.declared_splits == ["test"] * 6 + ["train"] * 6
    for index in range(12):
        assert saved.store.read(index).tobytes() == plain.store.read(index).tobytes()
    assert saved.keys[0] == "test/data-00000-of-00001.arrow#0"


def test_arrow__leaves_out_what_map_has_stored_beside_the_images(tmp_path):
    save_to_disk(tmp_path / "set", table(6))
    shutil.copy(tmp_path / "set/data-00000-of-00001.arrow", tmp_path / "set/cache-1a2b3c.arrow")
    assert len(open_images(tmp_path / "set", label_column="fine_label")) == 6


def test_arrow__damaged_ends_in_a_sentence(tmp_path):
    (tmp_path / "data.arrow").write_bytes(b"no arrow")
    with pytest.raises(UserError, match="cannot be read as an Arrow file"):
        open_images(tmp_path)


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """The hub's cache as it is after a download, by branch."""
    asked = []

    def snapshot(repository, *, repo_type, revision, allow_patterns, local_files_only):
        asked.append((repository, revision, local_files_only))
        folder = tmp_path / str(revision or "main").replace("/", "_")
        if not folder.is_dir():
            raise FileNotFoundError("no such revision on this machine")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    return tmp_path, asked


def test_hub__reads_what_the_hub_has_converted(fetched):
    folder, asked = fetched
    for part in ("train", "test"):
        (folder / "refs_convert_parquet" / "default" / part).mkdir(parents=True)
        pq.write_table(table(6), folder / "refs_convert_parquet" / "default" / part / "0000.parquet")
    images = open_images("hf:owner/plants", label_column="fine_label")
    assert (images.name, images.location) == ("plants", "hf:owner/plants")
    assert sorted(set(images.declared_splits)) == ["test", "train"]
    assert asked == [("owner/plants", None, True), ("owner/plants", hub.CONVERTED_REVISION, True)]
    asked.clear()
    open_images("hf:owner/plants", label_column="fine_label", download=True)
    assert asked[0] == ("owner/plants", None, False)


@pytest.mark.parametrize("others", ["partial-test", "test"])
def test_hub__keeps_the_parts_of_a_set_that_is_converted_in_part(fetched, others):
    folder, _ = fetched
    for part in ("partial-train", others):
        (folder / "refs_convert_parquet" / "default" / part).mkdir(parents=True)
        pq.write_table(table(6), folder / "refs_convert_parquet" / "default" / part / "0000.parquet")
    images = open_images("hf:owner/plants", label_column="fine_label")
    assert sorted(images.declared_splits) == ["test"] * 6 + ["train"] * 6
    assert any("only the first images of this set" in note and "partial-train" in note for note in images.notes)


def test_hub__tells_of_files_that_a_download_did_not_reach(fetched):
    folder, _ = fetched
    (folder / "main" / "data").mkdir(parents=True)
    for name in ("train-00000-of-00004", "train-00002-of-00004-0a1b2c", "test-00000-of-00001"):
        pq.write_table(table(6), folder / "main" / "data" / f"{name}.parquet")
    notes = open_images("hf:owner/plants", label_column="fine_label").notes
    assert [note for note in notes if "missing" in note] == [
        "only 2 of 4 files of 'data/train' are read, so images are missing"
    ]


def test_hub__takes_folders_of_parts_for_no_configurations(fetched):
    folder, _ = fetched
    for part in ("train", "validation"):
        (folder / "main" / part).mkdir(parents=True)
        pq.write_table(table(6), folder / "main" / part / "0000.parquet")
    assert sorted(set(open_images("hf:owner/plants", label_column="fine_label").declared_splits)) == ["train", "val"]


def test_hub__asks_for_one_of_several_configurations(fetched):
    folder, _ = fetched
    for name in ("large", "small"):
        (folder / "main" / name).mkdir(parents=True)
        pq.write_table(table(6), folder / "main" / name / "train.parquet")
    with pytest.raises(UserError, match=r"several configurations \(large, small\); choose .* hf:owner/plants/large"):
        open_images("hf:owner/plants", label_column="fine_label")
    assert len(open_images("hf:owner/plants/small", label_column="fine_label")) == 6
    with pytest.raises(UserError, match="has no configuration 'tiny'; it has large, small"):
        open_images("hf:owner/plants/tiny", label_column="fine_label")


def test_hub__says_what_to_do_where_nothing_is_there(fetched):
    with pytest.raises(UserError, match=r"no such revision on this machine\); download the data set with --download"):
        open_images("hf:owner/plants")


@pytest.mark.parametrize("name", ["hf:", "hf:plants", "hf:../x/y", "hf:a/b c"])
def test_hub__refuses_what_is_no_name(name):
    with pytest.raises(UserError, match="is not the name of a data set on the Hugging Face hub"):
        open_images(name)
