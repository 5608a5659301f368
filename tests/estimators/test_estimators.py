"""scikit-learn's contract: what X may be, the order of classes, copies, and scikit-learn's own checks."""

import csv
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from paucal import ImageClassifier, ImageEmbedder
from paucal.estimators.classifier import name_classes
from paucal.estimators.fitted import list_images
from paucal.verbs.check.labels import find_local_weights

SMALL = {"model_args": ["depth=1"], "mixup": 0, "cutmix": 0, "rand_augment": "none", "erase": 0, "lr": 5e-3}
needs_weights = pytest.mark.skipif(find_local_weights() is None, reason="no trained weights are on this machine")


def small(runs: Path, **changes) -> ImageClassifier:
    options = {"epochs": 8, "model": "vit_mini", "init": "none", "method": "supervised", "workers": 0, "device": "cpu"}
    return ImageClassifier(**{**options, "runs": runs, "settings": SMALL, **changes})


def pictures(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Dark and bright noise, (N, 16, 16), of the classes 7 and -2."""
    bright = np.arange(count) % 2
    noise = np.random.default_rng(0).integers(0, 100, (count, 16, 16))
    return (noise + 150 * bright[:, None, None]).astype(np.uint8), np.where(bright, -2, 7)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> ImageClassifier:
    return small(tmp_path_factory.mktemp("runs")).fit(*pictures())


def test_classifier__answers_with_the_labels_it_was_given(fitted):
    images, labels = pictures()
    assert fitted.classes_.tolist() == [-2, 7]
    assert fitted.score(images, labels) == 1.0
    shares = fitted.predict_proba(images)
    assert shares.shape == (40, 2)
    assert shares.sum(1) == pytest.approx(1, abs=1e-6)
    assert (fitted.classes_[shares.argmax(1)] == labels).all()
    assert fitted.transform(images[:3]).shape == (3, 128)


def test_images__of_any_kind_give_the_same_answers(fitted, tmp_path):
    images, _ = pictures(6)
    expected = fitted.predict_proba(images)
    as_pictures = [Image.fromarray(image) for image in images]
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for image, path in zip(as_pictures, paths, strict=True):
        image.save(path)
    column = np.array(list(map(str, paths)), dtype=object)
    for given in (list(images), as_pictures, paths, column, column[:, None], images[..., None]):
        assert fitted.predict_proba(given) == pytest.approx(expected)
    pandas = pytest.importorskip("pandas", reason="a DataFrame with one column is X")
    assert fitted.predict_proba(pandas.DataFrame({"path": paths})) == pytest.approx(expected)
    assert fitted.predict_proba(pandas.Series(paths)) == pytest.approx(expected)


def test_folders__among_the_paths_are_refused(fitted, tmp_path):
    for number in range(2):
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / f"{number}.png")
    for ask in (fitted.predict, fitted.transform):
        with pytest.raises(ValueError, match="X has 2 entries but 3 images, expected paths"):
            ask([str(tmp_path), str(tmp_path / "0.png")])


def test_run__trains_on_all_but_one_image_of_each_class(fitted):
    with Path(fitted.run_, "split.csv").open() as file:
        parts = [row["split"] for row in csv.DictReader(file)]
    assert parts.count("test") == 2
    assert parts.count("train") + parts.count("val") == 38


def test_pickle__holds_the_run_and_not_the_weights(fitted):
    images, _ = pictures(4)
    expected = fitted.predict_proba(images)
    packed = pickle.dumps(fitted)
    assert len(packed) < 2000
    assert pickle.loads(packed).predict_proba(images) == pytest.approx(expected)


def test_clone__is_not_fitted_and_keeps_the_parameters(fitted):
    copy = clone(fitted).set_params(epochs=3)
    assert {**copy.get_params(), "epochs": 8} == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(pictures()[0])


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("photo.jpg", "X is a single image"),
        ([], "0 samples"),
        (np.zeros((3, 4)), r"X\[0\] is an array of \(4,\) float64, expected paths"),
        ([1, 2], r"X\[0\] is <class 'int'>, expected paths"),
        (3, "X is of the type int"),
    ],
)
def test_other_inputs__are_refused(images, words):
    with pytest.raises(ValueError, match=words):
        list_images(images)


@pytest.mark.parametrize(
    ("labels", "words"),
    [([1] * 40, "y has one class, '1', expected at least two"), (None, "requires y"), ([1.5, 2.5] * 20, "continuous")],
)
def test_other_labels__are_refused(tmp_path, labels, words):
    with pytest.raises(ValueError, match=words):
        small(tmp_path).fit(pictures()[0], labels)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        ([1, 2], ["1", "2"]),
        (["a b", "ü"], ["a b", "ü"]),
        (["nan", "x"], ["class_0", "class_1"]),
        (["a", " a"], ["class_0", "class_1"]),
        ([1, "1"], ["class_0", "class_1"]),
    ],
)
def test_names_of_classes__are_their_texts_unless_these_are_read_otherwise(classes, names):
    assert name_classes(np.array(classes, dtype=object)) == names


def test_random_state__makes_fits_equal_or_different(tmp_path):
    images, labels = pictures(20)

    def fit(seed):
        return small(tmp_path, epochs=1, random_state=seed).fit(images, labels).predict_proba(images)

    first = fit(1)
    assert (fit(1) == first).all()
    assert not (fit(2) == first).all()
    assert (fit(np.random.RandomState(3)) == fit(np.random.RandomState(3))).all()


@needs_weights
def test_embedder__gives_features_in_a_pipeline():
    images, labels = pictures(12)
    pipeline = make_pipeline(ImageEmbedder(img_size=32), LogisticRegression())
    assert pipeline.fit(images, labels).score(images, labels) == 1.0
    embedder = pickle.loads(pickle.dumps(pipeline[0]))
    features = embedder.transform(images)
    assert features.shape == (12, embedder.n_features_out_)
    assert embedder.get_feature_names_out()[0] == "imageembedder0"
    assert features == pytest.approx(pipeline[0].transform(images))
    with pytest.raises(NotFittedError):
        clone(embedder).transform(images)


@pytest.mark.slow
def test_grid_search__in_two_processes(tmp_path):
    images, labels = pictures()
    search = GridSearchCV(small(tmp_path), {"lr": [1e-7, 5e-3]}, cv=2, n_jobs=2)
    search.estimator.settings = {name: value for name, value in SMALL.items() if name != "lr"}
    search.fit(images, labels)
    assert search.best_params_ == {"lr": 5e-3}
    assert search.best_score_ == 1.0
    assert len(list(tmp_path.iterdir())) == 5


# Those of scikit-learn's checks that fit nothing; the others fit tables of numbers, which are not images.
CHECKS = (
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    estimator_checks.check_mixin_order,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_estimators_unfitted,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [ImageClassifier, ImageEmbedder])
def test_scikit_learn__checks_the_estimators(kind, check):
    check(kind.__name__, kind())
