"""Random sets of classified images: what training sees is what was put in, or the set is refused.

`trial` writes a set in one of the layouts that people have (class folders, tables, lists, VOC's lists, Parquet,
shards, archives) in a random spelling, opens it as `paucal train` does, and compares. By hand, over many seeds:

    PYTHONPATH=tests python -m promises.classes 700
"""

import csv
import io
import json
import random
import shutil
import sys
import tarfile
import tempfile
import unicodedata
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from paucal.data.sources.opening import open_images
from paucal.types import UserError

WORDS = [
    *("cat", "dog", "Kätzchen", "Hündchen", "crème brûlée", "red cell", "O'Brien", "x-ray", "bear, polar", "Æble"),
    *("none of these", "A+", "50 %", "#1", "trainer", "test tube", "images of owls", "a.b", "Ünder_score"),
]
FAR = ["猫", "犬", "кошка", "γάτα", "고양이"]
PARTS = {"train": ["train", "Train", "training"], "val": ["val", "valid", "Validation"], "test": ["test", "Testing"]}
LOSSLESS = [".png", ".PNG", ".bmp", ".webp", ".tif"]
Colour = tuple[int, int, int]


@dataclass
class Item:
    """One image of a set: its colour tells it from all others."""

    colour: Colour
    labels: list[str]
    part: str
    path: str = ""


@dataclass
class Case:
    """A set on disk: where it is opened, what is in it, and what is asked of the opener."""

    location: Path
    items: list[Item]
    options: dict[str, object] = field(default_factory=dict)
    broken: bool = False  # whether nobody can say what is meant


def trial(folder: Path, seed: int) -> str:
    """Make a random set in a folder, open it, and compare; returns "read", or "refused: " with the sentence.

    Raises:
        AssertionError: What was read is not what was put in.
    """
    chance = random.Random(seed)
    make = chance.choice(
        [
            _folders,
            _folders,
            _tables,
            _tables,
            _tables,
            _tables,
            _lists,
            _voc,
            _parquet,
            _part_tables,
            _plain_rows,
            _shards,
        ]
    )
    case = make(folder, chance)
    try:
        images = open_images(case.location, **case.options)  # type: ignore[arg-type]
    except UserError as problem:
        return _checked_refusal(str(problem))
    assert not case.broken, f"{make.__name__}: what cannot be decided was read"
    found = {
        _colour_of(images.store.read(index)): (frozenset(images.classes_of(index)), images.declared_splits[index])
        for index in range(len(images))
    }
    plain = _plain(sorted({label for item in case.items for label in item.labels}))
    wanted = {item.colour: (frozenset(plain[label] for label in item.labels), item.part) for item in case.items}
    assert len(set(images.keys)) == len(images), "two images have one key"
    for name in images.classes:
        assert name.encode().strip() == name.encode() != b"", f"{name!r} is not valid name"
    assert found == wanted, f"{make.__name__}: {_difference(found, wanted)}"
    return "read"


def _checked_refusal(sentence: str) -> str:
    assert sentence.strip(), "a refusal says nothing"
    assert "\n" not in sentence, "a refusal has several lines"
    return f"refused: {sentence}"


def _plain(names: list[str]) -> dict[str, str]:
    """Return the names as a slow and simple reader has them."""
    found = {name: unicodedata.normalize("NFC", name.strip()) for name in names}
    if all(name.replace(".0", "").isdecimal() for name in found.values()):
        return {name: value.replace(".0", "") for name, value in found.items()}
    return found


def _difference(found: dict, wanted: dict) -> str:
    lines = [f"{key}: read {found.get(key)}, put in {wanted.get(key)}" for key in found.keys() | wanted.keys()]
    wrong = [
        line for key, line in zip(found.keys() | wanted.keys(), lines, strict=True) if found.get(key) != wanted.get(key)
    ]
    return f"{len(wrong)} images differ; {'; '.join(wrong[:3])}"


def _colour_of(picture: Image.Image) -> Colour:
    red, green, blue = (round(value / 8) * 8 for value in np.asarray(picture.convert("RGB"))[0, 0].astype(int))
    return red, green, blue


def _items(chance: random.Random, several: bool, parts: bool, words: list[str] | None = None) -> list[Item]:
    names = chance.sample(words or chance.choice([WORDS, WORDS, WORDS + FAR, ["0", "1", "2", "10"]]), 3)
    colours = chance.sample([(r, g, b) for r in range(8, 248, 16) for g in range(8, 248, 16) for b in (0, 96, 240)], 60)
    items = []
    for number in range(chance.randint(9, 24)):
        count = chance.choice([0, 1, 1, 2, 2, 3]) if several else 1
        labels = chance.sample(names, count) if several else [names[number % 3]]
        part = ("train", "train", "test", "val")[number % 4] if parts else ""
        items.append(Item(colours[number], labels, part))
    if several:  # so that there are several at all, and no class is missing
        items[0].labels, items[1].labels, items[2].labels = list(names), names[:1], names[1:]
    return items


def _write(path: Path, colour: Colour) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"lossless": True} if path.suffix == ".webp" else {"quality": 100} if path.suffix == ".jpg" else {}
    Image.new("RGB", (9, 7), colour).save(path, **options)


def _litter(root: Path, chance: random.Random) -> None:
    """Leave what systems and people leave in folders."""
    for name in chance.sample(["#recycle", "__pycache__", "$RECYCLE.BIN", "lost+found", "@eaDir", ".thumbs"], 2):
        (root / name).mkdir(exist_ok=True)
    for name in chance.sample(["Thumbs.db", ".DS_Store", "notes.md", "._labels.csv", "readme.txt"], 2):
        (root / name).write_bytes(b"\0\5\x16\7 left behind")


def _folders(root: Path, chance: random.Random) -> Case:
    items = _items(chance, several=False, parts=chance.random() < 0.5)
    spelling = {part: chance.choice(names) for part, names in PARTS.items()}
    decorate = {
        label: chance.choice([label, label, f"{label} ", unicodedata.normalize("NFD", label)]) for label in WORDS + FAR
    }
    place = root / "photos"
    for number, item in enumerate(items):
        label = decorate.get(item.labels[0], item.labels[0])
        deeper = chance.choice(["", "", "day 1/", "a/b/"])
        ending = chance.choice([*LOSSLESS, ".jpg"])
        begin = f"{spelling[item.part]}/" if item.part else ""
        _write(place / f"{begin}{label}/{deeper}{number % 5}_{number:02d}{ending}", item.colour)
    if chance.random() < 0.4:
        _litter(place, chance)
    form = chance.choice(["folder", "folder", "zip", "tar"])
    if form == "zip":
        with zipfile.ZipFile(root / "photos.zip", "w") as archive:
            for file in sorted(place.rglob("*")):
                name = file.relative_to(root).as_posix()
                archive.write(file, name)
        place = root / "photos.zip"
    elif form == "tar":
        with tarfile.open(root / "photos.tar", "w") as archive:
            archive.add(place, "photos")
        place = root / "photos.tar"
    return Case(place, items)


def _encode(text: str, chance: random.Random) -> bytes:
    encoding = chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "cp1252"])
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode("utf-8-sig")


def _labelled_cells(items: list[Item], several: bool, chance: random.Random) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns of labels and the cells of each image."""
    names = sorted({label for item in items for label in item.labels})
    form = chance.choice(
        ["separator", "json", "python", "marks"] if several else ["name", "name", "float", "numbered", "one hot"]
    )
    if form in ("marks", "one hot"):
        yes, no = chance.choice([("1", "0"), ("1.0", "0.0"), ("True", "False")])
        return names, [[yes if name in item.labels else no for name in names] for item in items]
    if form == "numbered":
        return ["label", "class_name"], [[str(names.index(item.labels[0])), item.labels[0]] for item in items]
    column = chance.choice(["label", "Label", "class", "category", "target"])
    if form == "json":
        return [column], [[json.dumps(item.labels, ensure_ascii=chance.random() < 0.5)] for item in items]
    if form == "python":
        return [column], [[str(item.labels)] for item in items]
    if several:
        sign = chance.choice([";", "|", "; ", " ; "])
        return [column], [[sign.join(item.labels)] for item in items]
    if form == "float" and all(name.isdecimal() for name in names):
        return [column], [[f"{item.labels[0]}.0"] for item in items]
    pad = chance.choice(["", "", " "])
    return [column], [[item.labels[0] + pad * chance.randint(0, 2)] for item in items]


def _tables(root: Path, chance: random.Random) -> Case:
    """Make a table with a column of parts, tables of the parts, or one without parts."""
    several, how = chance.random() < 0.4, chance.choice(["none", "column", "files", "files in folders", "is_valid"])
    items = _items(chance, several, parts=how not in ("none", "is_valid"))
    if how == "is_valid":
        for number, item in enumerate(items):
            item.part = "val" if number % 3 == 0 else "train"
    spelling = {part: chance.choice(names) for part, names in PARTS.items()}
    _place(root / "set", items, spelling if how == "files in folders" else None, chance)
    styles = (
        ["short"] if how == "files in folders" else ["as is", "./", "\\", "absolute", "short", "foreign", "capitals"]
    )
    style, bare = chance.choice(styles), chance.random() < 0.3
    labels, cells = _labelled_cells(items, several, chance)
    rows = [
        [_shown(item.path, style, bare, root / "set"), *row, chance.choice(["p1", "p2"])]
        for item, row in zip(items, cells, strict=True)
    ]
    header = [chance.choice(["image", "file_name", "Image Path", "id"]), *labels, "patient"]
    if how in ("column", "is_valid"):
        header.append(chance.choice(["split", "subset"]) if how == "column" else "is_valid")
        for row, item in zip(rows, items, strict=True):
            row.append(spelling[item.part] if how == "column" else str(item.part == "val"))
    elif how == "none" and len(labels) == 1 and not several and chance.random() < 0.5:
        rows.append([f"lost{chance.choice(LOSSLESS)}", chance.choice(["", "nan", "NaN", "<NA>"]), "p1"])
    order = chance.sample(range(len(header)), len(header))
    table = [[row[place] for place in order] for row in [header, *rows]]
    places = _write_tables(root / "set", table, items, spelling if how.startswith("files") else None, chance)
    location = chance.choice(places)
    if len(places) == 1 and chance.random() < 0.3:
        apart = root / "set" / chance.choice(["annotations", "labels"])
        apart.mkdir()
        location = location.rename(apart / location.name)
    return Case(location, items, {"root": root / "set"} if style == "foreign" else {})


def _place(folder: Path, items: list[Item], spelling: dict[str, str] | None, chance: random.Random) -> None:
    """Write the images, those of each part to a folder of their own where parts have such."""
    where = chance.choice(["", "images/", "imgs/", "photos/"])
    folders = {part: f"{word}{chance.choice(['', '_images'])}/" for part, word in (spelling or {}).items()}
    taken: Counter[str] = Counter()
    for item in items:
        name = f"{taken[item.part if spelling else '']:03d}{chance.choice(['', ' copy', 'é'])}"
        taken[item.part if spelling else ""] += 1
        item.path = f"{folders.get(item.part, where)}{name}{chance.choice(['.jpg', *LOSSLESS])}"
        # Another system may have written the name of the file.
        _write(folder / unicodedata.normalize(chance.choice(["NFC", "NFC", "NFD"]), item.path), item.colour)


def _shown(path: str, style: str, bare: bool, folder: Path) -> str:
    """Return a path as a table may have it."""
    path = path.rpartition("/")[2] if style == "short" else path
    path = path.rpartition(".")[0] if bare else path
    styles = {
        "./": f"./{path}",
        "\\": path.replace("/", "\\"),
        "absolute": f"{folder}/{path}",
        "capitals": path.upper(),
    }
    return styles.get(style, f"C:\\Users\\me\\{path}" if style == "foreign" else path)


def _write_tables(
    folder: Path, table: list[list[str]], items: list[Item], spelling: dict[str, str] | None, chance: random.Random
) -> list[Path]:
    """Write one table, or one for each part; returns the places where the set may be opened."""
    separator, begin = chance.choice([",", ",", ";", "\t", "|"]), chance.choice(["", "birds_"])
    quoting, lines = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), chance.choice(["\r\n", "\n"])
    ending = ".tsv" if separator == "\t" else ".csv"
    files = {part: folder / f"{begin}{word}{ending}" for part, word in (spelling or {"": "labels"}).items()}
    for part, file in files.items():
        rows = [row for place, row in enumerate(table[1:]) if not part or items[place].part == part]
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=lines).writerows([table[0], *rows])
        file.write_bytes(_encode(text.getvalue(), chance))
    return [folder, files["train"]] if spelling else [files[""]]


def _plain_rows(root: Path, chance: random.Random) -> Case:
    """Make a table by hand: without names of columns, with signs of Excel, rows that come twice, or an open quote."""
    items = _items(chance, several=False, parts=False)
    rows = []
    for number, item in enumerate(items):
        item.path = f"{number}{chance.choice([*LOSSLESS, '.jpg'])}"
        _write(root / "set" / item.path, item.colour)
        quoted = item.labels[0].replace('"', '""')
        rows.append([f'"{item.path}"', f'"{quoted}"'])
    begin = [['"image"', '"label"']] if chance.random() < 0.5 else []
    separator = chance.choice([" ; ", ";", ",", ", ", "\t"])
    lines = [separator.join(row) for row in [*begin, *rows, *(rows[:2] if chance.random() < 0.3 else [])]]
    if begin and separator == ";" and chance.random() < 0.5:
        lines.insert(0, "sep=;")
    broken = chance.random() < 0.2
    if broken:
        place = chance.randrange(1, len(lines) - 1)
        lines[place] = lines[place].rstrip()[:-1]
    (root / "set" / "labels.csv").write_bytes(_encode("\n".join(lines) + "\n", chance))
    return Case(root / "set" / "labels.csv", items, broken=broken)


def _shards(root: Path, chance: random.Random) -> Case:
    """Make tar files in WebDataset's layout."""
    items = _items(chance, several=False, parts=chance.random() < 0.5)
    (root / "set").mkdir()
    form = chance.choice(["cls", "txt names", "json"])
    names = sorted({item.labels[0] for item in items})
    for part in sorted({item.part for item in items}):
        with tarfile.open(root / "set" / f"{part or 'data'}-0000.tar", "w") as archive:
            for number, item in enumerate(item for item in items if item.part == part):
                picture = io.BytesIO()
                Image.new("RGB", (9, 7), item.colour).save(picture, "PNG")
                label = str(names.index(item.labels[0])) if form == "cls" else item.labels[0]
                about = json.dumps({"label": label}) if form == "json" else label
                for ending, content in (
                    ("png", picture.getvalue()),
                    ("json" if form == "json" else "cls", about.encode()),
                ):
                    member = tarfile.TarInfo(f"{number:05d}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    if form == "cls":
        text = "".join(f"{name}\n" for name in names)
        (root / "set" / "classes.txt").write_bytes(_encode(text, chance))
    return Case(root / "set", items)


def _part_tables(root: Path, chance: random.Random) -> Case:
    """Make a table in the folder of each part, as Hugging Face and Roboflow do."""
    several = chance.random() < 0.5
    items = _items(chance, several, parts=True)
    spelling = {part: chance.choice(names) for part, names in PARTS.items()}
    form = chance.choice(["metadata.csv", "metadata.jsonl", "_classes.csv"])
    names = sorted({label for item in items for label in item.labels})
    for part, word in spelling.items():
        lines, mine = [], [item for item in items if item.part == part]
        for number, item in enumerate(mine):
            item.path = f"{number}.png"
            _write(root / "set" / word / item.path, item.colour)
            if form == "metadata.jsonl":
                lines.append(json.dumps({"file_name": item.path, "label": item.labels if several else item.labels[0]}))
        target = root / "set" / word / form
        if form == "metadata.jsonl":
            target.write_text("\n".join(lines) + "\n")
            continue
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        marks = form == "_classes.csv" or several
        writer.writerow(["filename" if marks else "file_name", *(names if marks else ["label"])])
        for item in mine:
            writer.writerow([item.path, *([int(name in item.labels) for name in names] if marks else item.labels)])
        target.write_bytes(_encode(text.getvalue(), chance))
    return Case(root / "set", items)


def _lists(root: Path, chance: random.Random) -> Case:
    items = _items(chance, several=False, parts=chance.random() < 0.7)
    names = sorted({item.labels[0] for item in items})
    spelling = {part: chance.choice(words) for part, words in PARTS.items()}
    by_folder, begin = chance.random() < 0.5, chance.choice(["", "real_"])
    style = chance.choice(["/", "\\", "absolute", "/"])
    lines: dict[str, list[str]] = {}
    for number, item in enumerate(items):
        item.path = f"{names.index(item.labels[0])}/{number} b.png" if by_folder else f"all/{number}.png"
        _write(root / "set" / item.path, item.colour)
        shown = {"/": item.path, "\\": item.path.replace("/", "\\"), "absolute": f"{root}/set/{item.path}"}[style]
        lines.setdefault(item.part, []).append(
            f"{shown}{chance.choice([' ', '   ', chr(9)])}{names.index(item.labels[0])}"
        )
        item.labels = [str(names.index(item.labels[0]))]
    for part, some in lines.items():
        name = f"{begin}{spelling[part]}.txt" if part else "list.txt"
        (root / "set" / name).write_bytes(_encode("\n".join(some) + "\n", chance))
    start = f"{begin}{spelling['train']}.txt" if "train" in lines else "list.txt"
    return Case(
        chance.choice([root / "set", root / "set" / start]) if "train" in lines else root / "set" / start, items
    )


def _voc(root: Path, chance: random.Random) -> Case:
    items = _items(chance, several=True, parts=True, words=[name for name in WORDS if "/" not in name])
    names = sorted({label for item in items for label in item.labels})
    folder = root / "set/ImageSets/Main"
    folder.mkdir(parents=True)
    written = chance.choice(["{}", "{}.jpg", "JPEGImages/{}.jpg"])
    spelling = {part: chance.choice(words) for part, words in PARTS.items()}
    for number, item in enumerate(items):
        item.path = f"{number:06d}{chance.choice(['', ' copy'])}"
        _write(root / "set/JPEGImages" / f"{item.path}.jpg", item.colour)
    for name in names:
        for part, word in spelling.items():
            mine = [item for item in items if item.part == part]
            text = "".join(f"{written.format(item.path)} {1 if name in item.labels else -1:2d}\n" for item in mine)
            (folder / f"{name}_{word}.txt").write_bytes(_encode(text, chance))
    return Case(root / "set", items)


def _parquet(root: Path, chance: random.Random) -> Case:
    several = chance.random() < 0.4
    items = _items(chance, several, parts=chance.random() < 0.5)
    names = sorted({label for item in items for label in item.labels})
    numbered = chance.random() < 0.5
    (root / "set").mkdir()
    for part in sorted({item.part for item in items}):
        mine = [item for item in items if item.part == part]
        pictures = []
        for item in mine:
            buffer = io.BytesIO()
            Image.new("RGB", (9, 7), item.colour).save(buffer, "PNG")
            pictures.append({"bytes": buffer.getvalue(), "path": None})
        labels: list[object] = [[names.index(x) if numbered else x for x in item.labels] for item in mine]
        labels = labels if several else [row[0] for row in labels]  # type: ignore[index]
        kind = pa.int64() if numbered else pa.string()
        table = pa.table({"image": pictures, "label": pa.array(labels, pa.list_(kind) if several else kind)})
        if numbered:
            feature: dict[str, object] = {"_type": "ClassLabel", "names": names}
            about = {"info": {"features": {"image": {"_type": "Image"}, "label": [feature] if several else feature}}}
            table = table.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})
        pq.write_table(table, root / "set" / (f"{part}-00000-of-00001.parquet" if part else "data.parquet"))
    return Case(root / "set", items)


def main(first: int, end: int) -> None:
    """Run many trials and count how they end."""
    ends: Counter[str] = Counter()
    for seed in range(first, end):
        folder = Path(tempfile.mkdtemp(prefix="promise-"))
        try:
            outcome = trial(folder, seed)
            ends[outcome.partition(":")[0]] += 1
            if outcome != "read":
                print(seed, outcome)
        except AssertionError as problem:
            ends["wrong"] += 1
            print(seed, "WRONG", problem)
        finally:
            shutil.rmtree(folder)
    print(dict(ends))


if __name__ == "__main__":
    *begin, last = [int(word) for word in sys.argv[1:]] or [100]
    main(begin[0] if begin else 0, last)
