"""Find the edges in a picture with one convolution, on every backend that can run here.

    python examples/edge.py                        # a generated picture
    python examples/edge.py cat.png edges.png      # needs Pillow: pip install 'tercet[image]'

The classic first program for cuDNN: a 3x3 Laplacian over red, green and blue. The input has its
channels last (NHWC), as in image files, the output has them first (NCHW), as in ONNX; a node of the
model converts between them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet

#: Sums to zero, so that areas of a single colour become black.
LAPLACIAN = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32)


def edge_model(height: int, width: int) -> ModelProto:
    """Return a model from a picture [1, height, width, 3] of bytes to its edges [1, 3, h, w].

    Pixels are scaled to 0 to 1; each filter sums the Laplacian over all three channels; results are
    clipped to 0 to 1.
    """
    filters = np.tile(LAPLACIAN, (3, 3, 1, 1))
    nodes = [
        helper.make_node("Cast", ["picture"], ["bytes"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["bytes", "scale"], ["pixels"]),
        helper.make_node("Transpose", ["pixels"], ["image"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["image", "filters"], ["sums"], pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["sums", "zero", "one"], ["edges"]),
    ]
    constants = {"filters": filters, "scale": 1 / 255, "zero": 0.0, "one": 1.0}
    graph = helper.make_graph(
        nodes,
        "edges",
        [helper.make_tensor_value_info("picture", TensorProto.UINT8, [1, height, width, 3])],
        [helper.make_tensor_value_info("edges", TensorProto.FLOAT, [1, 3, height, width])],
        [numpy_helper.from_array(np.asarray(x, np.float32), n) for n, x in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def disc(size: int = 256) -> np.ndarray:
    """Return a picture [size, size, 3] of bytes: a red disc on blue, with a soft shadow."""
    y, x = np.mgrid[:size, :size] - size / 2
    distance = np.hypot(x, y)
    picture = np.full((size, size, 3), (40, 60, 160), np.uint8)
    picture[distance < 0.42 * size] //= 2
    picture[distance < 0.35 * size] = (200, 40, 30)
    return picture


def find_edges(picture: np.ndarray, backend: str) -> np.ndarray:
    """Return the edges of a picture [h, w, 3] of bytes, as [3, h, w] of bytes."""
    with tercet.load(edge_model(*picture.shape[:2]), backend) as model:
        (edges,) = model(picture[None])
    return np.rint(255 * edges[0]).astype(np.uint8)


def main() -> None:
    """Find the edges on every backend, compare, and save the picture if asked."""
    parser = argparse.ArgumentParser(description="Find the edges in a picture.")
    parser.add_argument("picture", nargs="?", type=Path, help="default: a disc")
    parser.add_argument("out", nargs="?", type=Path, help="where to write the edges")
    arguments = parser.parse_args()
    if arguments.picture is None:
        picture = disc()
    else:
        from PIL import Image

        picture = np.asarray(Image.open(arguments.picture).convert("RGB"))
    backends = [found.name for found in tercet.available() if found]
    results: dict[str, np.ndarray] = {}
    for name in backends:
        try:
            results[name] = find_edges(picture, name)
        except tercet.UnsupportedError as error:  # such as a backend of another package
            print(f"{name:8} {error}")
    first = next(iter(results.values()))
    for name, edges in results.items():
        apart = int(np.abs(edges.astype(int) - first).max())
        print(f"{name:8} {np.count_nonzero(edges)} bytes of edges, maximum difference {apart}")
    if arguments.out is not None:
        from PIL import Image

        Image.fromarray(first.transpose(1, 2, 0)).save(arguments.out)


if __name__ == "__main__":
    main()
