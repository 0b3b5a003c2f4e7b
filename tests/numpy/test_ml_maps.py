"""Maps, and classical features of every dtype, against onnxruntime and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import tercet
from tercet.backends.numpy.ops import ml_tables

from .nodes import ML, Array, assert_same, by_onnxruntime, check, model_of, node, run, texts

ROWS = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]], np.float32)


def one(op: str, value: Any, **attributes: Any) -> Any:
    model = model_of([node(op, "x", "y", domain=ML, **attributes)], {"x": value}, "y")
    (found,) = run(model, {"x": value})
    return found


# ── maps ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "labels",
    [{"classlabels_int64s": [7, 3, 11]}, {"classlabels_strings": ["a", "ä", ""]}],
)
def test_zip_map(labels: dict[str, Any]) -> None:
    for x in (ROWS, ROWS[:0], ROWS[0]):
        check([node("ZipMap", "x", "y", domain=ML, **labels)], {"x": x})


@pytest.mark.parametrize("form", [{"map_form": "DENSE"}, {"map_form": "SPARSE", "max_map": 6}])
@pytest.mark.parametrize("cast_to", ["TO_FLOAT", "TO_INT64"])
def test_cast_map(form: dict[str, Any], cast_to: str) -> None:
    x = {4: 1.75, 1: -2.5, 0: 1e-7, 2: 123456789.0}
    check([node("CastMap", "x", "y", domain=ML, cast_to=cast_to, **form)], {"x": x})


def test_cast_map_of_texts() -> None:
    x = {4: "1.5", 1: "-2"}
    assert_same(one("CastMap", x, cast_to="TO_FLOAT"), np.array([[-2, 1.5]], np.float32))
    assert_same(one("CastMap", x, cast_to="TO_STRING"), texts("-2", "1.5")[np.newaxis])
    sparse = one("CastMap", x, cast_to="TO_INT64", map_form="SPARSE", max_map=5)
    assert_same(sparse, np.array([[0, -2, 0, 0, 1]]))
    assert one("CastMap", {1: 0.5}, cast_to="TO_STRING").tolist() == [["0.5"]]


def test_cast_map_refuses_keys_outside() -> None:
    with pytest.raises(tercet.TercetError, match="max_map=3"):
        one("CastMap", {5: 1.0}, cast_to="TO_FLOAT", map_form="SPARSE", max_map=3)


@pytest.mark.parametrize(
    ("x", "vocabulary", "want"),
    [
        (
            {4: 1.5, 1: -2.5},
            {"int64_vocabulary": [1, 2, 4]},
            np.array([[-2.5, 0, 1.5]], np.float32),
        ),
        ({"a": 5}, {"string_vocabulary": ["b", "a"]}, np.array([[0, 5]])),
        ({"a": 1.5}, {"string_vocabulary": ["b", "a"]}, np.array([[0, 1.5]], np.float32)),
        ({4: "x"}, {"int64_vocabulary": [1, 4]}, texts("", "x")[None]),
        ({"a": np.float64(0.1)}, {"string_vocabulary": ["a"]}, np.array([[0.1]])),
    ],
)
def test_dict_vectorizer(x: Any, vocabulary: dict[str, Any], want: Array) -> None:
    """A row [1, v], as onnxruntime gives it; docs/rulings.md says why."""
    assert_same(one("DictVectorizer", x, **vocabulary), want)


def test_what_follows_a_dict_vectorizer_reads_rows() -> None:
    """Unions of features and distances of scikit-learn's are written for rows."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
        g (map(string, float) x) => (float[?,?] y, float[?,?] square) {
          row = ai.onnx.ml.DictVectorizer <string_vocabulary: strings = ["a", "b", "c"]> (x)
          y = Concat <axis: int = 1> (row, row)
          square = ReduceSumSquare <axes: ints = [1]> (row)
        }""")
    feeds = {"x": {"c": 2.0, "a": 0.5}}
    for got, want in zip(run(model, feeds), by_onnxruntime(model, feeds), strict=True):
        assert_same(got, want)


def test_a_map_there_and_back() -> None:
    nodes = [
        node("ZipMap", "x", "maps", domain=ML, classlabels_int64s=[5, 0, 2]),
        node("SequenceAt", "maps i", "map"),
        node("DictVectorizer", "map", "y", domain=ML, int64_vocabulary=[0, 2, 5, 7]),
    ]
    feeds = {"x": ROWS, "i": np.array(1)}
    (found,) = run(model_of(nodes, feeds, "y"), feeds)
    assert_same(found, np.array([[0.25, -0.5, 3.0, 0.0]], np.float32))


# ── labels and categories ────────────────────────────────────────────────────────────────────────

#: The first of equal ones counts.
KEYS: dict[str, list[Any]] = {
    "int64s": [3, 1, 2, 3],
    "floats": [0.5, float("nan"), 2.0, 0.5],
    "strings": ["b", "", "ä", "b"],
}
ASKED: dict[str, Array] = {
    "int64s": np.array([1, 2, 9, 3]),
    "floats": np.array([2.0, np.nan, 7.0, 0.5], np.float32),
    "strings": texts("ä", "", "z", "b"),
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", KEYS)
def test_label_encoder(keys: str, values: str) -> None:
    found = {
        "floats": [1.5, -2.0, 3.0, 4.5],
        "int64s": [3, 1, 2, 7],
        "strings": ["b", "", "ä", "c"],
    }
    attributes = {f"keys_{keys}": KEYS[keys], f"values_{values}": found[values]}
    check([node("LabelEncoder", "x", "y", domain=ML, **attributes)], {"x": ASKED[keys]})


@pytest.mark.parametrize("x", [texts("a", "c", "b"), np.array([0, 2, 9])], ids=["strings", "ints"])
def test_label_encoder_of_version_1(x: Array) -> None:
    """The last of equal classes counts there."""
    nodes = [node("LabelEncoder", "x", "y", domain=ML, classes_strings=["a", "b", "a"])]
    model = model_of(nodes, {"x": x}, "y")
    model.opset_import[1].version = 1
    (found,), (want,) = run(model, {"x": x}), by_onnxruntime(model, {"x": x})
    assert_same(found, want)


@pytest.mark.parametrize("keys", [np.float32, np.float64, np.int64, np.int32, np.int16, object])
@pytest.mark.parametrize("values", [np.float32, np.float64, np.int64, np.int32, np.int16, object])
def test_label_encoder_of_tensors(keys: Any, values: Any) -> None:
    def made(numbers: list[int], kind: Any) -> Array:
        data = np.array(numbers)
        return data.astype(str).astype(object) if kind is object else data.astype(kind)

    def tensor(numbers: list[int], kind: Any) -> Any:
        data = made(numbers, kind)
        number = helper.np_dtype_to_tensor_dtype(data.dtype)
        return helper.make_tensor("t", number, data.shape, data.tolist())

    attributes = {
        "keys_tensor": tensor([5, 1, 3], keys),
        "values_tensor": tensor([10, 20, 30], values),
        "default_tensor": tensor([7], values),
    }
    x = made([1, 3, 4, 5], keys)
    model = model_of([node("LabelEncoder", "x", "y", domain=ML, **attributes)], {"x": x}, "y")
    (found,) = run(model, {"x": x})
    assert_same(found, made([20, 30, 7, 10], values))


def test_category_mapper() -> None:
    attributes = {"cats_int64s": [3, 1], "cats_strings": ["c", "ä"]}
    for x in (texts("ä", "c", "?"), np.array([[1, 3, 8]])):
        check([node("CategoryMapper", "x", "y", domain=ML, **attributes)], {"x": x})


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, np.float64, object])
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4)])
def test_one_hot_encoder(kind: Any, shape: tuple[int, ...]) -> None:
    numbers = np.array([1, 4, 3, 9]).reshape(shape)
    want = (numbers[..., np.newaxis] == [3, 1, 4]).astype(np.float32)
    if kind is object:
        found = one("OneHotEncoder", numbers.astype(str).astype(object), cats_strings=list("314"))
    else:
        found = one("OneHotEncoder", numbers.astype(kind), cats_int64s=[3, 1, 4])
    assert_same(found, want)


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_tables_of_integers_are_prepared_once(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    given = {"keys_int64s": [-3, 7, 5], "values_floats": [0.5, -1.0, 2.0], "default_float": 9.0}
    x = np.array([[5, 7], [-3, 6]], kind)
    if kind == np.int32:
        tensor = {
            "keys_tensor": np.array([-3, 7, 5], kind),
            "default_tensor": np.full(1, 9, np.float32),
        }
        tensor |= {"values_tensor": np.array([0.5, -1.0, 2.0], np.float32)}
        given = {name: numpy_helper.from_array(np.array(t)) for name, t in tensor.items()}
    model = model_of([node("LabelEncoder", "x", "y", domain=ML, **given)], {"x": x}, "y")
    with tercet.load(model, backend="numpy") as loaded:
        loaded.run({"x": x})
        monkeypatch.setattr(ml_tables, "_table_of", None)
        (y,) = loaded.run({"x": x}).values()
        (other,) = loaded.run({"x": x + kind(100)}).values()
    np.testing.assert_array_equal(y, np.array([[2, -1], [0.5, 9]], np.float32))
    np.testing.assert_array_equal(other, np.full((2, 2), 9, np.float32))


@pytest.mark.parametrize("count", [1, 256, 300])  # with and without a table of all results
def test_one_hot_encoder_of_categories(count: int) -> None:
    x = np.random.default_rng(count).permutation(count + 20)
    for _ in range(2):
        found = one("OneHotEncoder", x, cats_int64s=[*range(10, count + 10)])
        assert_same(found, (x[:, np.newaxis] == np.arange(10, count + 10)).astype(np.float32))


@pytest.mark.parametrize(
    ("x", "categories"),
    [
        (np.array([1, 2, 3]), {"cats_int64s": [1, 2, 1]}),
        (texts("a", "b"), {"cats_strings": list("abba")}),
    ],
)
def test_the_last_of_equal_categories_counts(x: np.ndarray, categories: dict[str, Any]) -> None:
    """A single one is placed."""
    check([node("OneHotEncoder", "x", "y", domain=ML, **categories)], {"x": x})


def test_one_hot_encoder_may_refuse() -> None:
    with pytest.raises(tercet.TercetError, match="not one of the categories"):
        one("OneHotEncoder", np.array([1, 9]), cats_int64s=[1, 2], zeros=0)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────

NUMBERS = [np.float32, np.float64, np.int64, np.int32]


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Scaler", {"offset": [0.5, 1.0, -2.0], "scale": [2.0, 0.25, 1.0]}),
        ("Scaler", {"offset": [1.0], "scale": [3.0]}),
        ("Normalizer", {"norm": "L1"}),
        ("Normalizer", {"norm": "L2"}),
        ("Normalizer", {"norm": "MAX"}),
        ("FeatureVectorizer", {"inputdimensions": [3]}),
    ],
)
def test_features(op: str, attributes: dict[str, Any], kind: Any) -> None:
    x = (ROWS * 4).astype(kind)
    check([node(op, "x", "y", domain=ML, **attributes)], {"x": x})


@pytest.mark.parametrize("kind", NUMBERS)
def test_scaled_features_have_the_bits_of_onnxruntime(kind: Any) -> None:
    """Trees behind it compare them with thresholds that some are equal to."""
    x = (np.random.default_rng(0).standard_normal((500, 3)) * 1e6).astype(kind)
    attributes = {"offset": [5.8433332, 3.0573332, -1.1993333], "scale": [1.2116787, 0.3, 0.56]}
    nodes = [node("Scaler", "x", "y", domain=ML, **attributes)]
    (found,) = run(model_of(nodes, {"x": x}, "y"), {"x": x})
    (wanted,) = by_onnxruntime(model_of(nodes, {"x": x}, "y"), {"x": x})
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_imputer(kind: Any) -> None:
    x = np.array([[1, 2, 1], [4, 1, 6]], kind)
    name, of = ("floats", "float") if kind is np.float32 else ("int64s", "int64")
    for values in ([9], [7, 8, 9]):
        values = np.array(values, kind).tolist()
        attributes = {f"imputed_value_{name}": values, f"replaced_value_{of}": kind(1).item()}
        check([node("Imputer", "x", "y", domain=ML, **attributes)], {"x": x})


def test_binarizer_and_extractor() -> None:
    check([node("Binarizer", "x", "y", domain=ML, threshold=0.5)], {"x": ROWS})
    feeds = {"x": texts("a", "b", "c").reshape(1, 3), "i": np.array([[2, 0]])}
    check([node("ArrayFeatureExtractor", "x i", "y", domain=ML)], feeds)


def test_normalizer_like_scikit_learn() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    for norm in ("l1", "l2"):
        want = preprocessing.normalize(ROWS, norm=norm)
        np.testing.assert_allclose(one("Normalizer", ROWS, norm=norm.upper()), want, rtol=1e-6)


# ── classifiers with labels that are strings ─────────────────────────────────────────────────────

LABELS = ["ä", "", "c"]
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "LinearClassifier": {
        "coefficients": [0.5, -1.0, 1.0, -0.5, 1.0, 0.0, 0.25, 0.0, -1.0],
        "intercepts": [0.1, -0.2, 0.0],
        "post_transform": "SOFTMAX",
    },
    "SVMClassifier": {
        "coefficients": [1.0, -0.5, 0.75, -1.0, 0.5, -0.25],
        "kernel_params": [0.5, 0.0, 3.0],
        "kernel_type": "RBF",
        "rho": [0.1, -0.2, 0.3],
        "support_vectors": [0.0, 1.0, 1.0, 1.0, 0.0, 2.0, -1.0, 0.5, 0.0],
        "vectors_per_class": [1, 1, 1],
    },
    "TreeEnsembleClassifier": {
        "nodes_falsenodeids": [2, 0, 0],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_nodeids": [0, 1, 2],
        "nodes_treeids": [0, 0, 0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_values": [1.0, 0.0, 0.0],
        "class_ids": [0, 1, 2],
        "class_nodeids": [1, 2, 2],
        "class_treeids": [0, 0, 0],
        "class_weights": [1.0, 2.0, 0.5],
    },
}


@pytest.mark.parametrize("op", CLASSIFIERS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_classifiers(op: str, kind: Any) -> None:
    x = (ROWS * 4).astype(kind)
    made = node(op, "x", "label scores", domain=ML, classlabels_strings=LABELS, **CLASSIFIERS[op])
    model = model_of([made], {"x": x}, "label scores")
    model.opset_import[1].version = 3  # the newest one with trees of this kind
    for got, want in zip(run(model, {"x": x}), by_onnxruntime(model, {"x": x}), strict=True):
        assert_same(got, want, 1e-5)
