"""Operators of com.microsoft, as functions over ONNX's own operators.

onnxruntime's optimizer, its quantizers and exporters write operators of the domain com.microsoft.
Each of them is defined here once, in terms of ONNX's own operators, and expanded at import; so
every backend and every pass supports it, and only the importer knows about it. An operator is a
function whose signature is its declaration:

    @contrib("SkipLayerNormalization", outputs=(1, 4))
    def skip_layer_normalization(
        b: Builder, x: T, skip: T, gamma: T, beta: T | None = None, *, epsilon: float = 1e-12
    ) -> Results:
        total = b.Add(x, skip)
        ...
        return y, None, None, total

* Positional parameters are the inputs, in order, as names of values (`str`); None stands for one
  that is left out, ``*rest`` takes any number. Their annotations (`T`, `Int32`, … of `declaration`,
  or an ``Annotated[str, Kind(letter, dtypes)]`` of one's own) say which dtypes they take;
  parameters of one letter are of one dtype.
* Keyword-only parameters are the attributes, with their types (int, float, str, bool, tuples,
  ``int | None``) and defaults; one without a default is required.
* `NodeBuilder` adds nodes of the newest opset at once: ``b.Add(x, y)`` returns the name of the sum,
  of which ``b.type(name)``, ``b.rank(name)``, ``b.dim(name, axis)``, ``b.dtype(name)`` and
  ``b.value(name)`` tell what is known. Attributes are keywords. ``b.constant``, ``b.number`` and
  ``b.ints`` are constants; ``b.size(x, axis)`` is a dimension as a tensor, symbolic or not, and
  ``b.shape(2, b.size(x, 1), 8)`` combines such dimensions into a shape.
  ``b.several("Split", 2, x, axis=1)`` has more than one output.
* It returns the name of the result, or a tuple of them, with None for an optional output that
  the node does not have; ``b.wants(1)`` tells whether it has one.
* ``raise b.error("…")`` is for violations of the operator's definition,
  ``raise b.unsupported("…", "save again with …")`` for valid uses that are not supported. Both
  name the file and the node. Errors of the operators inside are reported for the file's node.

The modules are listed in `catalogue`; one is imported when the first node of a file asks for an
operator of it. tests/contrib holds each declaration against onnxruntime's schema, and its results
against those of onnxruntime's CPU: add draws of samples there.
"""
