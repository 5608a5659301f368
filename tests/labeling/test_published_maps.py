"""Published label maps: read as they are, refused where they are not, and put where they belong."""

import pickle
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console as Terminal

from paucal.data.maps.reader import LabelMaps
from paucal.data.sources.opening import open_images
from paucal.labeling import published_maps as published
from paucal.labeling.published_maps import find_maps, mean_over_positions, read_map
from paucal.runner.console import Console
from paucal.types import UserError
from paucal.verbs.label.launch import convert_published

SHAPE = (3, 4, 5)  # k, rows, columns
SIZE = (40, 20)  # width and height of the images


@pytest.fixture
def photos(tmp_path):
    """Six images in two classes, and a published map of each that names its class everywhere."""
    generator = np.random.default_rng(0)
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "maps" / name).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
            torch.save(make_map(label, number), tmp_path / "maps" / name / f"{number}.pt")
    return tmp_path


def make_map(label, seed):
    """Return k = 3 of 4 classes, of which the first is the label."""
    values = torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)).sort(0, descending=True).values + 2
    order = torch.tensor([label, *(k for k in range(4) if k != label)][:3])
    return torch.stack((values, order[:, None, None].expand(SHAPE).float())).half()


def convert(base, images=None, **settings):
    images = images or open_images(base / "photos")
    names = settings.pop("classes", ("ant", "bee", "cow", "dog"))
    console = Console(Terminal(quiet=True))
    return convert_published(images, base / "maps", base / "labels", console, names, **settings).facts


def test_convert__keeps_the_raw_logits_and_knows_the_square(photos):
    facts = convert(photos, classes=("ant", "bee", "cow", "dog"))
    assert (facts.top, facts.grid, facts.covered, facts.classes[2]) == (3, (4, 5), "square", "cow")
    stored = LabelMaps(photos / "labels")
    assert stored.metadata == facts
    values = np.load(photos / "labels" / "values.npy")
    assert np.array_equal(values[4], make_map(1, 1)[0].numpy())
    assert np.load(photos / "labels" / "indices.npy")[4, 0].tolist() == [[1] * 5] * 4


def test_reader__gives_the_shares_that_a_central_square_covers(photos):
    for number in range(3):
        torch.save(make_map(0, number)[:, :2].clamp(max=1.0), photos / "maps" / "ant" / f"{number}.pt")
        torch.save(make_map(1, number)[:, :2].clamp(max=1.0), photos / "maps" / "bee" / f"{number}.pt")
    images = open_images(photos / "photos")
    convert(photos, images, classes=("ant", "bee"), min_accuracy=0)
    reader = pickle.loads(pickle.dumps(LabelMaps(photos / "labels").open_reader(images, np.arange(6))))
    assert reader(2)["covered"].tolist() == [0.5, 1.0]  # 20 of 40 pixels across, all 20 down


def test_convert__goes_on_where_it_stopped(photos, monkeypatch):
    monkeypatch.setattr(published, "FILES_PER_GROUP", 2)
    files = published.read_map
    seen = []

    def stops(path, classes):
        seen.append(path)
        if len(seen) == 11:  # six for the trial, one for the shape, then two a group
            raise KeyboardInterrupt
        return files(path, classes)

    monkeypatch.setattr(published, "read_map", stops)
    monkeypatch.setattr("paucal.verbs.label.launch.read_map", stops)
    with pytest.raises(KeyboardInterrupt):
        convert(photos)
    assert np.load(photos / "labels" / "done.npy").tolist() == [1, 1, 0, 0, 0, 0]
    monkeypatch.undo()
    convert(photos)
    assert np.array_equal(np.load(photos / "labels" / "values.npy")[5], make_map(1, 2)[0].numpy())
    assert np.load(photos / "labels" / "done.npy").all()


def test_convert__of_wrong_names_is_noticed_by_the_accuracy(photos):
    with pytest.raises(UserError, match=r"correct for 0\.0 % of the images"):
        convert(photos, classes=("bee", "ant", "cow", "dog"))
    assert not (photos / "labels").exists()
    with pytest.raises(UserError, match=r"names class 2 of 2"):
        convert(photos, classes=("ant", "bee"))
    with pytest.raises(UserError, match="has a class 'bee' that is not among the 2 names"):
        convert(photos, classes=("ant", "cow"))


def test_maps__of_held_out_images_may_be_missing(photos):
    (photos / "photos").rename(photos / "all")
    for part in ("train", "val"):
        (photos / "photos" / part).mkdir(parents=True)
        for name in ("ant", "bee"):
            (photos / "photos" / part / name).mkdir()
            numbers = (0, 1) if part == "train" else (2,)
            for number in numbers:
                (photos / "all" / name / f"{number}.png").rename(photos / "photos" / part / name / f"{number}.png")
    (photos / "maps" / "ant" / "2.pt").unlink()
    images = open_images(photos / "photos")
    positions, files = find_maps(images, photos / "maps")
    assert [images.keys[i] for i in positions][:2] == ["train/ant/0.png", "train/ant/1.png"]
    assert len(files) == 5
    (photos / "maps" / "bee" / "1.pt").unlink()
    with pytest.raises(UserError, match=r"there is no map for 1 of the training images, such as 'train/bee/1.png'"):
        find_maps(images, photos / "maps")


def test_maps__of_another_set_are_refused(photos, tmp_path):
    images = open_images(photos / "photos")
    with pytest.raises(UserError, match="contains no maps of photos"):
        find_maps(images, photos / "photos")
    with pytest.raises(UserError, match="is not a folder"):
        find_maps(images, photos / "nowhere")
    with pytest.raises(UserError, match="maps are found by class folder and file name, but 'digits#0' is not a file"):
        find_maps(open_images("digits"), photos / "maps")
    (photos / "photos" / "ant" / "0.more.png").write_bytes((photos / "photos" / "ant" / "0.png").read_bytes())
    with pytest.raises(UserError, match="2 images would have the same map"):
        find_maps(open_images(photos / "photos"), photos / "maps")


def test_maps__outside_of_the_folder_are_refused(photos):
    images = open_images(photos / "photos")
    images.keys[0] = "../0.png"
    with pytest.raises(UserError, match=r"would be outside of .*: rename the image"):
        find_maps(images, photos / "maps")
    images.keys[0] = "ant/0.png"
    target = photos / "maps" / "ant" / "0.pt"
    target.rename(photos / "elsewhere.pt")
    target.symlink_to(photos / "elsewhere.pt")
    with pytest.raises(UserError, match="would be outside of"):
        find_maps(images, photos / "maps")


def refused(path, match, classes=4):
    with pytest.raises(UserError, match=match):
        read_map(path, classes)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (torch.ones(3, 2, 4, 4).half(), "expected a float16 map of shape \\(2, k, rows, columns\\)"),
        (torch.ones(2, 4, 4).half(), "expected a float16 map of shape \\(2, k, rows, columns\\)"),
        (torch.ones(2, 1, 4, 4, dtype=torch.long), "contains a tensor of type int64 and shape"),
        (torch.ones(1).half().expand(2, 5, 900, 900), "is larger than its storage"),
        (torch.full((2, 1, 2, 2), float("nan")), "NaN or infinite logits"),
        (torch.full((2, 1, 2, 2), 1.5), "fractional class numbers"),
        (torch.full((2, 1, 2, 2), -1.0), "names class -1 of 4"),
        (torch.full((2, 1, 2, 2), 4.0), "names class 4 of 4"),
        ([torch.ones(2, 1, 2, 2)], "not contain a dense tensor"),
        (torch.zeros(2, 5, 1024, 1024), "is 40 MiB large, expected a map of a few KiB"),
    ],
)
def test_file__that_is_no_map_is_refused(tmp_path, content, match):
    torch.save(content, tmp_path / "map.pt")
    refused(tmp_path / "map.pt", match)


class Evil:
    def __reduce__(self):
        return print, ("this must never be printed",)


def test_file__with_code_in_it_is_refused(tmp_path, capsys):
    torch.save(Evil(), tmp_path / "map.pt")
    refused(tmp_path / "map.pt", "cannot be loaded")
    torch.save(torch.ones(2, 1, 2, 2), tmp_path / "map.pt")
    content = (tmp_path / "map.pt").read_bytes()
    (tmp_path / "map.pt").write_bytes(content[: len(content) // 2])
    refused(tmp_path / "map.pt", "cannot be loaded")
    (tmp_path / "map.pt").write_bytes(pickle.dumps(Evil()))
    refused(tmp_path / "map.pt", "cannot be loaded")
    assert capsys.readouterr().out == ""


def test_file__that_unpacks_to_much_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "map.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("map/data/0", bytes(64 << 20))
    assert (tmp_path / "map.pt").stat().st_size < 1 << 20
    refused(tmp_path / "map.pt", "is 64 MiB large")


def test_mean_over_cells__counts_unnamed_classes_as_zero():
    values = torch.tensor([[[2.0, 4.0]], [[1.0, 1.0]]])
    indices = torch.tensor([[[0, 1]], [[1, 2]]])
    assert mean_over_positions(values, indices, 4).tolist() == [1.0, 2.5, 0.5, 0.0]
