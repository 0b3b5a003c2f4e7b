"""Classical machine learning: the domain ai.onnx.ml.

Features are [n, c]; where a vector [c] is allowed it stands for [1, c]. `post_transform` is NONE,
SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT. Attributes come in one variant per element type, of which
a model sets one.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import ClassVar

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import DType, float32, int64, name_of, string
from ..ir.op import Op, TensorAttribute, op
from ..ir.types import Array, Dim, MapType, SequenceType, Shape, TensorType
from .shapes import add, checked, dim, need_choice, need_rank, product, same_dim

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def rows_of(x: TensorType) -> Dim:
    """Return the number of rows of features [n, c] or [c]."""
    need_rank(x, (1, 2), "x")
    return 1 if x.rank == 1 else dim(x, 0)


def table_of(x: TensorType, columns: Dim, transform: str) -> TensorType:
    """Return the type of float32 results [n, columns]."""
    need_choice(transform, "post_transform", *TRANSFORMS)
    if isinstance(columns, int) and columns < 1:
        raise ShapeError(f"{columns} targets; at least one is needed")
    return TensorType(float32, (rows_of(x), columns))


def one_of(first: Sized | None, second: Sized | None, names: str) -> int:
    """Return the length of whichever of two attributes is set."""
    if bool(first) == bool(second):
        raise ShapeError(f"exactly one of {names} must be set")
    return len(first or second or ())


def classified(
    x: TensorType, ints: Ints | None, strings: Strings | None, columns: Dim, transform: str
) -> tuple[TensorType, TensorType]:
    """Return the types of labels [n] and scores [n, columns]."""
    if ints and strings:
        raise ShapeError("class labels are either integers or strings")
    scores = table_of(x, columns, transform)
    return TensorType(string if strings else int64, (rows_of(x),)), scores


def need_lengths(what: str, *attributes: Sized | None) -> None:
    """Raise ShapeError unless all attributes that are set have the same length."""
    lengths = {len(a) for a in attributes if a is not None}
    if len(lengths) > 1:
        raise ShapeError(f"{what} must be of one length, not {sorted(lengths)}")


@op
class ArrayFeatureExtractor(Op):
    """x[..., y]: the columns of the last axis at the positions y (version 1)."""

    domain: ClassVar = DOMAIN

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        count = None if y.shape is None else product(y.shape)
        if x.shape is None:
            return x.with_shape(None)
        if not x.shape:
            raise ShapeError("x is a scalar; it needs an axis to select from")
        leading: Shape = (1,) if len(x.shape) == 1 else x.shape[:-1]
        return x.with_shape(checked((*leading, count)))


@op
class Binarizer(Op):
    """1 where x > threshold, else 0 (version 1)."""

    domain: ClassVar = DOMAIN
    threshold: float = 0.0

    def infer(self, x: TensorType) -> TensorType:
        return x.without_value()


@op
class CastMap(Op):
    """The values of a map with int64 keys, in the order of the keys, as [1, count] (version 1).

    With the `map_form` SPARSE the key is the column, out of `max_map`.
    """

    domain: ClassVar = DOMAIN
    cast_to: str = "TO_FLOAT"
    map_form: str = "DENSE"
    max_map: int = 1

    def infer(self, x: MapType) -> TensorType:
        dtypes = {"TO_FLOAT": float32, "TO_STRING": string, "TO_INT64": int64}
        need_choice(self.cast_to, "cast_to", *dtypes)
        need_choice(self.map_form, "map_form", "DENSE", "SPARSE")
        if x.key != int64:
            raise ShapeError(f"x has keys of {name_of(x.key)}; int64 is needed")
        if self.map_form == "SPARSE" and self.max_map < 1:
            raise ShapeError(f"max_map={self.max_map}; it must be 1 or more")
        columns = self.max_map if self.map_form == "SPARSE" else None
        return TensorType(dtypes[self.cast_to], (1, columns))


@op
class CategoryMapper(Op):
    """Strings to integers or integers to strings by two parallel lists (version 1)."""

    domain: ClassVar = DOMAIN
    cats_int64s: Ints | None = None
    cats_strings: Strings | None = None
    default_int64: int = -1
    default_string: str = "_Unused"

    def infer(self, x: TensorType) -> TensorType:
        need_lengths("cats_int64s and cats_strings", self.cats_int64s, self.cats_strings)
        return x.with_dtype(int64 if x.dtype == string else string)


@op
class DictVectorizer(Op):
    """Values of a map at the keys of the vocabulary, 0 for missing keys: [1, v] (version 1)."""

    domain: ClassVar = DOMAIN
    int64_vocabulary: Ints | None = None
    string_vocabulary: Strings | None = None

    def infer(self, x: MapType) -> TensorType:
        names = "int64_vocabulary and string_vocabulary"
        count = one_of(self.int64_vocabulary, self.string_vocabulary, names)
        wanted = int64 if self.int64_vocabulary else string
        if x.key != wanted:
            raise ShapeError(f"x has keys of {name_of(x.key)}, the vocabulary {name_of(wanted)}")
        if not isinstance(x.element, TensorType):
            raise ShapeError(f"x is {x}; expected a map to scalars")
        return TensorType(x.element.dtype, (1, count))


@op
class FeatureVectorizer(Op):
    """Features [n, c] side by side, as float32: [n, sum of `inputdimensions`] (version 1)."""

    domain: ClassVar = DOMAIN
    inputdimensions: Ints | None = None

    def infer(self, x: TensorType, *rest: TensorType) -> TensorType:
        inputs = (x, *rest)
        sizes = self.inputdimensions or (None,) * len(inputs)
        if len(sizes) != len(inputs):
            raise ShapeError(f"inputdimensions={sizes} for {len(inputs)} inputs")
        n, columns = None, 0
        for size, features in zip(sizes, inputs, strict=True):
            n = same_dim(n, rows_of(features), "rows of the inputs")
            wanted = f"columns of {features} and inputdimensions"
            columns = add(columns, same_dim(size, dim(features, -1), wanted))
        return TensorType(float32, checked((n, columns)))


@op
class Imputer(Op):
    """x with `replaced_value` (often nan) replaced by one value, or one per column (version 1)."""

    domain: ClassVar = DOMAIN
    imputed_value_floats: Floats | None = None
    imputed_value_int64s: Ints | None = None
    replaced_value_float: float = 0.0
    replaced_value_int64: int = 0

    def infer(self, x: TensorType) -> TensorType:
        names = "imputed_value_floats and imputed_value_int64s"
        count = one_of(self.imputed_value_floats, self.imputed_value_int64s, names)
        _need_per_column(x, count, "imputed values")
        return x.without_value()


def _need_per_column(x: TensorType, count: int, what: str) -> None:
    """Raise ShapeError unless there is one element for all columns, or one per column."""
    if count != 1 and x.shape is not None:
        same_dim(x.shape[-1] if x.shape else 1, count, f"columns of x {x} and {what}")


@op
class LabelEncoder(Op):
    """Every element looked up among the keys and replaced by its value (version 4).

    Unknown elements become the default of the values' type; NaN equals NaN, and the first of equal
    keys counts, as in onnxruntime.
    """

    domain: ClassVar = DOMAIN
    default_float: float = -0.0
    default_int64: int = -1
    default_string: str = "_Unused"
    default_tensor: TensorAttribute | None = None
    keys_floats: Floats | None = None
    keys_int64s: Ints | None = None
    keys_strings: Strings | None = None
    keys_tensor: TensorAttribute | None = None
    values_floats: Floats | None = None
    values_int64s: Ints | None = None
    values_strings: Strings | None = None
    values_tensor: TensorAttribute | None = None

    def infer(self, x: TensorType) -> TensorType:
        key, keys = _only(
            "keys", self.keys_floats, self.keys_int64s, self.keys_strings, self.keys_tensor
        )
        value, values = _only(
            "values",
            self.values_floats,
            self.values_int64s,
            self.values_strings,
            self.values_tensor,
        )
        if keys != values:
            raise ShapeError(f"{keys} keys and {values} values; there must be as many")
        if x.dtype != key:
            raise ShapeError(f"x is {x}, the keys are {name_of(key)}")
        return x.with_dtype(value)

    @property
    def keys(self) -> Array:
        """The keys, in the variant that is set."""
        return _variant(self.keys_tensor, self.keys_floats, self.keys_int64s, self.keys_strings)

    @property
    def values(self) -> Array:
        """The value of each key."""
        lists = self.values_floats, self.values_int64s, self.values_strings
        return _variant(self.values_tensor, *lists)

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Different keys in the file's order, and the value of each."""
        keys = self.keys
        first = np.sort(np.unique(keys, return_index=True)[1])
        return keys[first], self.values[first]

    @property
    def default(self) -> Array:
        """The value of unknown elements."""
        if self.default_tensor is not None:
            return self.default_tensor.array.reshape(())
        dtype = self.values.dtype
        given = {float32: self.default_float, int64: self.default_int64}
        found = self.default_string if dtype == string else given.get(dtype, 0)
        return np.array(found, dtype)


def _variant(
    tensor: TensorAttribute | None,
    floats: Floats | None,
    ints: Ints | None,
    strings: Strings | None,
) -> Array:
    """Return the one variant of an attribute that is set."""
    if tensor is not None:
        return tensor.array.reshape(-1)
    if floats is not None:
        return np.array(floats, float32)
    return np.array(ints, int64) if ints is not None else np.array(strings, string)


def _only(
    what: str,
    floats: Floats | None,
    ints: Ints | None,
    strings: Strings | None,
    tensor: TensorAttribute | None,
) -> tuple[DType, int]:
    """Return dtype and number of elements of the variant that is set."""
    found: list[tuple[DType, int]] = []
    for dtype, values in ((float32, floats), (int64, ints), (string, strings)):
        found.extend([] if values is None else [(dtype, len(values))])
    if tensor is not None:
        found.append((tensor.array.dtype, tensor.array.size))
    if len(found) != 1:
        raise ShapeError(f"exactly one of {what}_* must be set, not {len(found)}")
    return found[0]


@op
class LinearClassifier(Op):
    """Labels and scores x @ coefficients.T + intercepts, a row per class (version 1).

    With two classes and one row of coefficients, that row scores the second class.
    """

    dense = True
    domain: ClassVar = DOMAIN
    outputs: ClassVar = (2, 2)
    classlabels_ints: Ints | None = None
    classlabels_strings: Strings | None = None
    coefficients: Floats
    intercepts: Floats | None = None
    multi_class: int = 0
    post_transform: str = "NONE"

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        ints, strings = self.classlabels_ints, self.classlabels_strings
        classes = one_of(ints, strings, "classlabels_ints and classlabels_strings")
        return classified(x, ints, strings, classes, self.post_transform)


@op
class LinearRegressor(Op):
    """x @ coefficients.T + intercepts, a row per target (version 1)."""

    dense = True
    domain: ClassVar = DOMAIN
    coefficients: Floats | None = None
    intercepts: Floats | None = None
    post_transform: str = "NONE"
    targets: int = 1

    def infer(self, x: TensorType) -> TensorType:
        result = table_of(x, self.targets, self.post_transform)
        count = len(self.coefficients or ())
        columns = dim(x, -1)
        if isinstance(columns, int) and count != self.targets * columns:
            raise ShapeError(
                f"{count} coefficients for {self.targets} targets of {columns} features"
            )
        if self.intercepts and len(self.intercepts) != self.targets:
            raise ShapeError(f"{len(self.intercepts)} intercepts for {self.targets} targets")
        return result


@op
class Normalizer(Op):
    """Rows divided by their maximum, sum (L1) or Euclidean norm (L2), as float32 (version 1)."""

    domain: ClassVar = DOMAIN
    norm: str = "MAX"

    def infer(self, x: TensorType) -> TensorType:
        need_choice(self.norm, "norm", "MAX", "L1", "L2")
        need_rank(x, (1, 2), "x")
        return x.with_dtype(float32)


@op
class OneHotEncoder(Op):
    """1 at the last category equal to x, 0 at all others, along a new last axis (version 1).

    Without `zeros` an unknown category is an error. Numbers are converted to integers first.
    """

    domain: ClassVar = DOMAIN
    cats_int64s: Ints | None = None
    cats_strings: Strings | None = None
    zeros: int = 1

    def infer(self, x: TensorType) -> TensorType:
        categories = one_of(self.cats_int64s, self.cats_strings, "cats_int64s and cats_strings")
        shape = None if x.shape is None else (*x.shape, categories)
        return TensorType(float32, None if shape is None else checked(shape))


@op
class Scaler(Op):
    """(x - offset) * scale, as float32, with one element for all columns or each (version 1)."""

    domain: ClassVar = DOMAIN
    offset: Floats | None = None
    scale: Floats | None = None

    def infer(self, x: TensorType) -> TensorType:
        for name, values in (("offset", self.offset), ("scale", self.scale)):
            _need_per_column(x, 1 if values is None else len(values), name)
        return x.with_dtype(float32)


@op
class SVMClassifier(Op):
    """Labels and scores of a support vector machine, one against one (version 1).

    Scores are per class with probabilities (`prob_a`) and for linear models (no vectors), else one
    per pair of classes; two classes always have two scores.
    """

    dense = True
    domain: ClassVar = DOMAIN
    outputs: ClassVar = (2, 2)
    classlabels_ints: Ints | None = None
    classlabels_strings: Strings | None = None
    coefficients: Floats | None = None
    kernel_params: Floats | None = None
    kernel_type: str = "LINEAR"
    post_transform: str = "NONE"
    prob_a: Floats | None = None
    prob_b: Floats | None = None
    rho: Floats | None = None
    support_vectors: Floats | None = None
    vectors_per_class: Ints | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        _need_kernel(self.kernel_type, self.kernel_params)
        ints, strings = self.classlabels_ints, self.classlabels_strings
        classes = one_of(ints, strings, "classlabels_ints and classlabels_strings")
        per_class = bool(self.prob_a) or not sum(self.vectors_per_class or ())
        columns = classes if per_class or classes == 2 else classes * (classes - 1) // 2
        return classified(x, ints, strings, columns or None, self.post_transform)


def _need_kernel(kernel_type: str, kernel_params: Floats | None) -> None:
    need_choice(kernel_type, "kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID")
    if kernel_params and len(kernel_params) != 3:
        raise ShapeError(f"kernel_params={kernel_params}; gamma, coef0 and degree are needed")


@op
class SVMRegressor(Op):
    """Regression or outlier detection by a support vector machine: [n, 1] (version 1)."""

    dense = True
    domain: ClassVar = DOMAIN
    coefficients: Floats | None = None
    kernel_params: Floats | None = None
    kernel_type: str = "LINEAR"
    n_supports: int = 0
    one_class: int = 0
    post_transform: str = "NONE"
    rho: Floats | None = None
    support_vectors: Floats | None = None

    def infer(self, x: TensorType) -> TensorType:
        _need_kernel(self.kernel_type, self.kernel_params)
        return table_of(x, 1, self.post_transform)


@op
class ZipMap(Op):
    """A list of maps from class label to score, one per row (version 1)."""

    domain: ClassVar = DOMAIN
    classlabels_int64s: Ints | None = None
    classlabels_strings: Strings | None = None

    def infer(self, x: TensorType) -> SequenceType:
        ints, strings = self.classlabels_int64s, self.classlabels_strings
        classes = one_of(ints, strings, "classlabels_int64s and classlabels_strings")
        need_rank(x, (1, 2), "x")
        same_dim(dim(x, -1), classes, f"columns of x {x} and class labels")
        return SequenceType(MapType(int64 if ints else string, TensorType(float32, ())))
