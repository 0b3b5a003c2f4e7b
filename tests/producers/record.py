"""Writes the models of `recorded`: scikit-learn, XGBoost, LightGBM and CatBoost, default options.

    pip install '.[producers]' xgboost catboost && python tests/producers/record.py

Each is the file that the converter writes, with an .npz of inputs and of onnxruntime's results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

RECORDED = Path(__file__).parent / "recorded"
ROWS = 7
TEXTS = ["the quick brown fox", "jumps over the lazy dog", "a Dog, and a fox!", "hello world"]
TEXTS += ["the world is round; dogs bark", "", "x"]
CLASSES = np.array([0, 1, 0, 1, 1, 0, 1])

Made = tuple[ModelProto, dict[str, Any]]


def features() -> tuple[Any, Any]:
    """Return 90 rows of 4 features, and three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.standard_normal((90, 4)) * 0.4 + np.eye(3, 4)[y]
    return x.astype(np.float32), y


def with_gaps(x: Any) -> Any:
    """Return the features with some of them missing."""
    holes = x.copy()
    holes[::5, 1] = np.nan
    return holes


def from_sklearn() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names and makers of pipelines of numbers."""
    from sklearn import (
        calibration,
        decomposition,
        ensemble,
        gaussian_process,
        impute,
        linear_model,
        mixture,
        naive_bayes,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        svm,
        tree,
    )

    to_onnx = import_module("skl2onnx").to_onnx
    logistic = linear_model.LogisticRegression
    # scikit-learn has no types; those that its defaults suggest are too narrow.
    isolation: dict[str, Any] = {"n_estimators": 4, "max_samples": 16, "random_state": 0}
    models = {
        "logistic": logistic(),
        "logistic_labels": logistic(),
        "svc": svm.SVC(),
        "linear_svc": calibration.CalibratedClassifierCV(svm.LinearSVC()),
        "forest": ensemble.RandomForestClassifier(n_estimators=4, max_depth=3, random_state=0),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=2, random_state=0),
        "extra_gaps": pipeline.make_pipeline(
            impute.SimpleImputer(strategy="median", add_indicator=True),
            ensemble.ExtraTreesClassifier(n_estimators=3, max_depth=3, random_state=0),
        ),
        "isolation": ensemble.IsolationForest(**isolation),
        "voting": ensemble.VotingClassifier(
            [("a", logistic()), ("b", naive_bayes.GaussianNB())],
            voting="soft",
            flatten_transform=False,
        ),
        "stacking": ensemble.StackingClassifier(
            [("a", logistic()), ("b", tree.DecisionTreeClassifier(max_depth=2))]
        ),
        "tree": tree.DecisionTreeRegressor(max_depth=3),
        "neighbors": neighbors.KNeighborsClassifier(3),
        "outliers": neighbors.LocalOutlierFactor(n_neighbors=5, novelty=True),
        "one_class": svm.OneClassSVM(),
        "process": gaussian_process.GaussianProcessRegressor(alpha=0.1),
        "mixture": mixture.GaussianMixture(2, random_state=0),
        "perceptron": neural_network.MLPClassifier((5,), max_iter=50, random_state=0),
        "bins_gaps": pipeline.make_pipeline(
            impute.SimpleImputer(),
            preprocessing.PowerTransformer(),
            decomposition.PCA(2),
            preprocessing.KBinsDiscretizer(3, encode="onehot-dense"),
            logistic(),
        ),
    }
    x, y = features()
    small, few = x[:24], y[:24]
    for name, model in models.items():
        labels = np.array(["a", "b", "é"])[few] if name.endswith("labels") else few
        rows = with_gaps(small) if name.endswith("gaps") else small

        def make(
            model: Any = model, rows: Any = rows, labels: Any = labels, name: str = name
        ) -> Made:
            options: dict[Any, Any] = {}
            model.fit(rows, labels)
            if name in ("outliers", "process"):
                options = {id(model): {"optim": "cdist"}}
            wanted = {"": 15, "ai.onnx.ml": 3} if name == "isolation" else None
            proto = to_onnx(model, rows[:1], options=options, target_opset=wanted)
            return proto, {"X": rows[:ROWS]}

        yield f"sklearn_{name}", make


def from_texts() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names and makers of pipelines of texts and categories."""
    from sklearn import compose, feature_extraction, linear_model, pipeline, preprocessing
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    convert_sklearn = import_module("skl2onnx").convert_sklearn
    types = import_module("skl2onnx.common.data_types")
    column = np.array(TEXTS, object).reshape(-1, 1)
    logistic = linear_model.LogisticRegression

    def text(model: Any) -> Callable[[], Made]:
        def make() -> Made:
            model.fit(TEXTS, CLASSES)
            kinds = [("t", types.StringTensorType([None, 1]))]
            return convert_sklearn(model, initial_types=kinds), {"t": column}

        return make

    yield "text_tfidf", text(pipeline.make_pipeline(TfidfVectorizer(), logistic()))
    yield (
        "text_words",
        text(
            pipeline.make_pipeline(
                TfidfVectorizer(ngram_range=(1, 2), stop_words="english"), logistic()
            )
        ),
    )
    yield "text_characters", text(CountVectorizer(analyzer="char", lowercase=False))

    def mixed() -> Made:
        frame = import_module("pandas").DataFrame(
            {"n": np.arange(7.0, dtype=np.float32), "k": list("abcabca"), "t": TEXTS}
        )
        model = pipeline.make_pipeline(
            compose.ColumnTransformer([
                ("n", preprocessing.StandardScaler(), ["n"]),
                ("k", preprocessing.OneHotEncoder(handle_unknown="ignore"), ["k"]),
                ("t", TfidfVectorizer(), "t"),
            ]),
            logistic(),
        )  # fmt: skip
        model.fit(frame, CLASSES.astype(str))
        kinds = [
            ("n", types.FloatTensorType([None, 1])),
            ("k", types.StringTensorType([None, 1])),
            ("t", types.StringTensorType([None, 1])),
        ]
        feeds = {"n": frame[["n"]].values, "k": frame[["k"]].values.astype(object), "t": column}
        return convert_sklearn(model, initial_types=kinds), feeds

    yield "text_columns", mixed

    def hashed() -> Made:
        model = feature_extraction.FeatureHasher(8, input_type="string").fit(column)
        kinds = [("t", types.StringTensorType([None, 1]))]
        return convert_sklearn(model, initial_types=kinds), {"t": column}

    yield "text_hashes", hashed


def from_boosters() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names and makers of gradient boosting."""
    packages = ("catboost", "lightgbm", "xgboost", "onnxmltools")
    catboost, lightgbm, xgboost, onnxmltools = map(import_module, packages)
    convert_lightgbm, convert_xgboost = onnxmltools.convert_lightgbm, onnxmltools.convert_xgboost
    types = import_module("onnxmltools.convert.common.data_types")
    x, y = features()
    gaps = with_gaps(x)
    initial = [("X", types.FloatTensorType([None, 4]))]
    some = {"n_estimators": 3, "max_depth": 3}
    for name, convert, model in (
        ("xgboost", convert_xgboost, xgboost.XGBClassifier(**some)),
        ("xgboost_regressor", convert_xgboost, xgboost.XGBRegressor(**some)),
        ("lightgbm", convert_lightgbm, lightgbm.LGBMClassifier(verbose=-1, **some)),
        ("lightgbm_regressor", convert_lightgbm, lightgbm.LGBMRegressor(verbose=-1, **some)),
    ):

        def make(convert: Any = convert, model: Any = model) -> Made:
            return convert(model.fit(gaps, y), initial_types=initial), {"X": gaps[:ROWS]}

        yield name, make

    def cat(model: Any, labels: Any) -> Callable[[], Made]:
        def make() -> Made:
            file = RECORDED / "catboost.tmp"
            model.fit(x, labels).save_model(str(file), format="onnx")
            proto = onnx.load(file)
            file.unlink()
            return proto, {proto.graph.input[0].name: x[:ROWS]}

        return make

    few = {"iterations": 3, "depth": 3, "verbose": 0, "allow_writing_files": False}
    yield "catboost", cat(catboost.CatBoostClassifier(**few), np.array(["a", "b", "c"])[y])
    yield "catboost_regressor", cat(catboost.CatBoostRegressor(**few), y)


def by_onnxruntime(model: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Return onnxruntime's results; texts are changed in a locale that every system has."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "StringNormalizer" and not any(
            a.name == "locale" for a in node.attribute
        ):
            node.attribute.append(onnx.helper.make_attribute("locale", "C.utf8"))
    session = onnxruntime.InferenceSession(copy.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def main() -> None:
    """Write everything."""
    from tercet.tools.common.nested import flat

    warnings.simplefilter("ignore")
    RECORDED.mkdir(exist_ok=True)
    for family in (from_sklearn, from_texts, from_boosters):
        for name, make in family():
            model, feeds = make()
            arrays = {f"input/{key}": data for key, data in feeds.items()}
            arrays |= {
                f"output/{key}": data for key, data in flat(by_onnxruntime(model, feeds)).items()
            }
            (RECORDED / f"{name}.onnx").write_bytes(model.SerializeToString())
            plain = {
                key: data.astype(str) if data.dtype == object else data
                for key, data in arrays.items()
            }
            np.savez_compressed(RECORDED / f"{name}.npz", **plain)
            print(f"{name}: {model.ByteSize()} bytes")


if __name__ == "__main__":
    main()
