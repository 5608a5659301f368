"""The page and its endpoint: what is answered, what is refused, and what nobody gets at."""

import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from paucal.backbones import BackboneSpec
from paucal.evaluation.familiarity import fit_familiarity
from paucal.models.card import ModelCard
from paucal.models.features import ClassifierInputExtractor
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import TrainedModel
from paucal.runner.familiar import features_of
from paucal.types import UserError
from paucal.verbs.serve import launch, picture_predictor
from paucal.verbs.serve.app import host_name, make_app
from paucal.verbs.serve.picture_predictor import PicturePredictor

HOSTILE = "<script>alert(1)</script>"
PICTURE = {"Content-Type": "application/octet-stream"}


def deployed(thresholds: tuple[float, ...] | None = None) -> TrainedModel:
    torch.manual_seed(0)
    spec = BackboneSpec("vit_mini", 3, image_size=(16, 16), arguments={"depth": 1})
    fed = Preprocessing((16, 16), 1.0, "bicubic", (0.5,) * 3, (0.5,) * 3)
    card = ModelCard(spec, ("cat", HOSTILE, "dog"), fed, temperature=2.0, thresholds=thresholds)
    return TrainedModel(spec.build().model.eval(), card, torch.device("cpu"))


def picture(seed: int = 0, size: tuple[int, int] = (20, 24), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def client(answerer: PicturePredictor | None = None, most: int = 100_000, **options) -> TestClient:
    made = answerer or PicturePredictor(deployed(), None)
    return TestClient(make_app(made, "a run", most, ("127.0.0.1", "localhost"), **options), "http://localhost:8000")


def ask(page: TestClient, content: bytes, query: str = "", **headers):
    return page.post(f"/api/classify{query}", content=content, headers={**PICTURE, **headers})


def test_classify__gives_the_calibrated_probabilities_of_the_model() -> None:
    model = deployed()
    answer = ask(client(PicturePredictor(model, None)), picture(), "?name=mine.png").json()
    wanted = model.probabilities([Image.open(io.BytesIO(picture()))])[0]
    found = {one["name"]: one["probability"] for one in answer["classes"]}
    assert found == {name: round(float(share), 4) for name, share in zip(model.classes, wanted, strict=True)}
    assert [one["probability"] for one in answer["classes"]] == sorted(found.values(), reverse=True)
    assert [one["chosen"] for one in answer["classes"]] == [True, False, False]
    assert (answer["name"], answer["unlike"], answer["explanation"]) == ("mine.png", {"known": False}, None)


def test_classify__warns_of_a_picture_with_more_bits_than_the_training_images() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 60_000, (24, 20), dtype=np.uint16)).save(buffer, "PNG")
    answer = ask(client(), buffer.getvalue()).json()
    assert answer["note"].startswith("The image has more than 8 bits per channel")
    assert ask(client(), picture()).json()["note"] == ""


def test_classify__of_several_labels_marks_all_above_their_thresholds() -> None:
    model = deployed((0.01, 0.01, 0.99))
    answer = ask(client(PicturePredictor(model, None)), picture()).json()
    assert answer["several"] is True
    assert {one["name"] for one in answer["classes"] if one["chosen"]} == {"cat", HOSTILE}


def test_classify__of_several_labels_gives_those_above_their_thresholds_beyond_the_likeliest(monkeypatch) -> None:
    monkeypatch.setattr(picture_predictor, "MAX_CLASSES", 1)
    model = deployed((0.99, 0.99, 0.99))
    least = int(model.probabilities([Image.open(io.BytesIO(picture()))])[0].argmin())
    thresholds = [0.99, 0.99, 0.99]
    thresholds[least] = 0.01
    answer = ask(client(PicturePredictor(deployed(tuple(thresholds)), None)), picture()).json()
    assert [one["chosen"] for one in answer["classes"]] == [False, True]
    assert answer["classes"][1]["name"] == model.classes[least]


def test_classify__says_whether_a_picture_is_like_the_training_images() -> None:
    model = deployed()
    reader, transform = ClassifierInputExtractor(model.module), model.card.preprocessing.transform()

    def features(seeds: range) -> torch.Tensor:
        images = [transform(Image.open(io.BytesIO(picture(seed))))[0] for seed in seeds]
        return features_of(reader, model, torch.stack(images))

    known = fit_familiarity(features(range(40)), features(range(40, 60)))
    reader.close()
    page = client(PicturePredictor(model, known))
    flat = io.BytesIO()
    Image.new("RGB", (20, 24), (250, 0, 0)).save(flat, "PNG")
    fresh = [ask(page, picture(seed)).json()["unlike"] for seed in range(100, 110)]
    strange = ask(page, flat.getvalue()).json()["unlike"]
    assert all(one["known"] for one in [*fresh, strange])
    assert sum(one["unlike"] for one in fresh) <= 2
    assert strange["unlike"]
    assert strange["distance"] > strange["limit"] == pytest.approx(known.limit, abs=1e-4)


def test_classify__draws_what_spoke_for_two_classes() -> None:
    found = ask(client(), picture(), "?explain=1").json()["explanation"]
    assert len(found["maps"]) == 2
    assert all(one["picture"].startswith("data:image/png;base64,") for one in found["maps"])
    assert found["maps"][0]["probability"] >= found["maps"][1]["probability"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "sentence"),
    [
        (b"no picture", {}, 422, "cannot be decoded"),
        (b"", {}, 422, "the image is empty"),
        (b"x" * 100_001, {}, 413, "larger than 0.1 MB"),
        (b"x", {"Content-Length": str(10**9)}, 413, "larger than 0.1 MB"),
        (b"x", {"Content-Type": "text/plain"}, 415, "send the image itself"),
        (b"x", {"Content-Type": "multipart/form-data"}, 415, "send the image itself"),
    ],
)
def test_classify__refuses_in_one_sentence(content: bytes, headers: dict, status: int, sentence: str) -> None:
    found = ask(client(), content, **headers)
    assert found.status_code == status
    assert sentence in found.json()["error"]


def test_classify__stops_reading_what_is_too_large_though_nobody_said_how_large_it_is() -> None:
    sent = []

    def endless():
        for number in range(1000):
            sent.append(number)
            yield b"x" * 10_000

    found = client().post("/api/classify", content=endless(), headers=PICTURE)
    assert found.status_code == 413


def test_classify__refuses_a_bomb_before_it_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    monkeypatch.setattr(picture_predictor, "decode_image", lambda *given: pytest.fail("it was decoded"))
    found = ask(client(), buffer.getvalue())
    assert found.status_code == 422
    assert "9000 x 9000 pixels, but at most 64 million" in found.json()["error"]


def test_classify__holds_a_bounded_number_of_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    held, most, lock, release = 0, 0, threading.Lock(), threading.Event()

    def slow(content: bytes, name: str, explain: bool) -> dict:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        release.wait(20)
        with lock:
            held -= 1
        return {"name": name}

    answerer = PicturePredictor(deployed(), None)
    monkeypatch.setattr(answerer, "predict", slow)
    with client(answerer, max_waiting=4) as page, ThreadPoolExecutor(100) as pool:
        asked = [pool.submit(ask, page, picture()) for _ in range(100)]
        while sum(one.done() for one in asked) < 96:
            pass
        release.set()
        found = sorted(one.result().status_code for one in asked)
        assert found == [200] * 4 + [503] * 96
        assert most == 4
        assert ask(page, picture()).status_code == 200  # and its places are free again


def test_page__comes_from_here_alone_and_may_run_no_other_script() -> None:
    page = client()
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        found = page.get(path)
        assert found.headers["content-type"].startswith(kind)
        assert "script-src 'self'" in found.headers["content-security-policy"]
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert "http://" not in found.text
        assert "https://" not in found.text
    assert "innerHTML" not in page.get("/page.js").text


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/page.html", "/settings.py", "//etc/passwd"]
)
def test_no_other_file_is_read(path: str) -> None:
    assert client().get(path).status_code == 404


def test_names_from_outside_stay_text() -> None:
    page = client()
    answer = ask(page, picture(), "?name=%3Cscript%3E").json()
    assert answer["name"] == "<script>"
    assert HOSTILE in page.get("/api/model").json()["classes"]
    assert page.get("/api/model").headers["content-type"] == "application/json"
    assert HOSTILE not in page.get("/").text


@pytest.mark.parametrize(
    ("host", "own", "shown"),
    [
        ("127.0.0.1", "192.168.1.7", "http://127.0.0.1:80/"),
        ("::1", "192.168.1.7", "http://[::1]:80/"),
        (
            "0.0.0.0",
            "192.168.1.7",
            "http://127.0.0.1:80/, or on another device of your network http://192.168.1.7:80/,",
        ),
        ("0.0.0.0", None, "http://127.0.0.1:80/"),
    ],
)
def test_address_that_is_shown__can_be_opened(host, own, shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_network_address", lambda: own)
    assert launch.addresses(host, 80) == shown


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no sockets for both kinds of addresses")
def test_all_addresses_of_ipv6__are_reached_by_the_one_that_is_shown() -> None:
    with (
        launch._listening_socket("::", 0) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])),
    ):
        pass


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""])
def test_requests_for_another_host_are_refused(host: str) -> None:
    assert client().get("/api/model", headers={"Host": host}).status_code == 400
    assert ask(client(), picture(), Host=host).status_code == 400


def test_host_name() -> None:
    assert [host_name(one) for one in ("LocalHost:80", "[::1]:8000", "127.0.0.1")] == ["localhost", "::1", "127.0.0.1"]


def test_a_backbone_without_classes_is_refused() -> None:
    model = deployed()
    bare = replace(model, card=replace(model.card, classes=(), backbone=replace(model.card.backbone, num_classes=0)))
    with pytest.raises(UserError, match="has no classifier"):
        PicturePredictor(bare, None)
