"""Train the model that `tercet demo` runs, and write it to tercet/demo/.

The classic lecture model: two rounds of convolution, batch-norm, relu and max-pool, then a fully
connected layer and a softmax. It learns scikit-learn's handwritten digits (1797 grey images of 8x8
pixels, values 0 to 16); a fifth of them, stratified by class, is held out and used for nothing but
the figures printed at the end.

    pip install torch scikit-learn onnx onnxruntime
    python tools/workshop/train_demo.py

The ONNX graph is written by hand from the trained weights, so that its batch-norms stay in it
(folding them is the runtime's work) and every node has the name a reader expects. One seed gives
the same files, byte for byte, on one machine and torch version.
"""

# PyTorch is needed here only, and is not among the development tools.
# pyright: reportMissingImports=false

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, max_pool2d, relu

OPSET = 21
LEVELS = 16  # pixels are counts 0..16 of the ink in a 4x4 block
SHOWN = 16  # held-out images that are shipped
TOLERANCE = 1e-5
LICENCE = "model: Apache-2.0; digits: E. Alpaydin and C. Kaynak, UCI, CC BY 4.0"


class Digits(NamedTuple):
    """Images `uint8[n, 1, 8, 8]`, 0 to 16, and labels `int64[n]`, 0 to 9."""

    images: np.ndarray
    labels: np.ndarray

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images as `float32` in 0..1, and the labels."""
        return torch.from_numpy(self.images).float() / LEVELS, torch.from_numpy(self.labels)


class LectureNet(nn.Module):
    """`float32[n, 1, 8, 8]` to logits `float32[n, 10]`. Only bn1, bn2 and fc have a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = max_pool2d(relu(self.bn1(self.conv1(x))), 2)
        x = max_pool2d(relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


def load_split(seed: int) -> tuple[Digits, Digits]:
    """Return the training and the held-out digits: 1437 and 360, stratified by class."""
    pixels, classes = load_digits(return_X_y=True)
    images = np.asarray(pixels, np.uint8).reshape(-1, 1, 8, 8)
    labels = np.asarray(classes, np.int64)
    order = np.arange(len(labels))
    train, held_out = train_test_split(order, test_size=0.2, stratify=labels, random_state=seed)
    return Digits(images[train], labels[train]), Digits(images[held_out], labels[held_out])


def shift(images: torch.Tensor, pixels: float) -> torch.Tensor:
    """Move each image by up to `pixels` in each direction; fractions interpolate, 0 comes in."""
    n, _, h, w = images.shape
    theta = torch.eye(2, 3).repeat(n, 1, 1)
    theta[:, :, 2] = (torch.rand(n, 2) * 2 - 1) * pixels * torch.tensor([2 / w, 2 / h])
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def train(net: LectureNet, data: Digits, epochs: int) -> None:
    """AdamW, one cycle of the learning rate, images shifted afresh in every epoch.

    Smoothed labels keep the probabilities away from 0 and 1, where rounding would hide a
    difference between backends.
    """
    images, labels = data.tensors()
    batch = 64
    steps = epochs * (len(labels) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    net.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        batches = torch.randperm(len(labels))[: len(labels) // batch * batch].view(-1, batch)
        for rows in batches:
            logits = net(shift(images[rows], pixels=1.0))
            loss = cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 10 == 0 or epoch == epochs:
            print(f"epoch {epoch:3d}/{epochs}  loss {total / len(batches):.4f}", flush=True)
    net.eval()


@torch.no_grad()
def classify(net: LectureNet, data: Digits) -> np.ndarray:
    """Return the probabilities, `float32[n, 10]`."""
    return net(data.tensors()[0]).softmax(dim=1).numpy()


def choose_shown(labels: np.ndarray) -> np.ndarray:
    """Return the rows to ship: the first of each class, then the second, right or wrong."""
    rank = np.array([np.count_nonzero(labels[:i] == label) for i, label in enumerate(labels)])
    return np.lexsort((labels, rank))[:SHOWN]


def build_nodes(net: LectureNet) -> list[onnx.NodeProto]:
    """Return the nodes; a tensor has the name of its node, the last one is `probabilities`."""
    nodes: list[onnx.NodeProto] = []

    def add(operator: str, name: str, inputs: list[str], **attributes: Any) -> str:
        output = "probabilities" if operator == "Softmax" else name
        nodes.append(helper.make_node(operator, inputs, [output], name, **attributes))
        return output

    x = "image"
    for i, norm in ((1, net.bn1), (2, net.bn2)):
        conv, bn = f"conv{i}", f"bn{i}"
        statistics = [f"{bn}.{key}" for key in ("weight", "bias", "running_mean", "running_var")]
        x = add("Conv", conv, [x, f"{conv}.weight"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        x = add("BatchNormalization", bn, [x, *statistics], epsilon=norm.eps)
        x = add("Relu", f"relu{i}", [x])
        x = add("MaxPool", f"pool{i}", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = add("Flatten", "flatten", [x])
    x = add("Gemm", "fc", [x, "fc.weight", "fc.bias"], transB=1)
    add("Softmax", "softmax", [x], axis=1)
    return nodes


def build_onnx(net: LectureNet, metadata: dict[str, str]) -> onnx.ModelProto:
    """Return `image: float32[batch, 1, 8, 8]` → `probabilities: float32[batch, 10]`."""
    weights = {k: v.numpy() for k, v in net.state_dict().items() if v.is_floating_point()}
    graph = helper.make_graph(
        build_nodes(net),
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model_gen_version(graph, opset_imports=opsets, producer_name="train_demo")
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def check_against_onnxruntime(model: onnx.ModelProto, data: Digits, expected: np.ndarray) -> float:
    """Return the largest difference from torch's probabilities; exit if it is above 1e-5."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = np.asarray(session.run(None, {"image": data.tensors()[0].numpy()})[0])
    difference = float(np.abs(found - expected).max())
    if difference > TOLERANCE:
        raise SystemExit(f"onnxruntime and torch differ by {difference:.1e}: nothing written")
    return difference


def save(
    folder: Path, model: onnx.ModelProto, digits: Digits, probabilities: np.ndarray
) -> tuple[Path, Path]:
    """Write digits.onnx and digits.npz into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    model_path, digits_path = folder / "digits.onnx", folder / "digits.npz"
    onnx.save(model, model_path)
    np.savez_compressed(digits_path, **digits._asdict(), probabilities=probabilities)
    return model_path, digits_path


def parse_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="Train the model that `tercet demo` runs.")
    default = Path(__file__).resolve().parents[2] / "tercet" / "demo"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    parser.add_argument("--epochs", type=int, default=60, help="default: 60")
    parser.add_argument("--seed", type=int, default=0, help="split, weights, shifts; default: 0")
    return parser.parse_args()


def main() -> None:
    """Train, measure, check, write."""
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums then have one order, whatever the machine's cores
    training, held_out = load_split(arguments.seed)
    net = LectureNet()
    train(net, training, arguments.epochs)

    probabilities = classify(net, held_out)
    right = probabilities.argmax(axis=1) == held_out.labels
    rows = choose_shown(held_out.labels)
    metadata = {
        "dataset": "Optical Recognition of Handwritten Digits (scikit-learn load_digits)",
        "licence": LICENCE,
        "training_images": len(training.labels),
        "held_out_images": len(held_out.labels),
        "held_out_correct": right.sum(),
        "held_out_accuracy": f"{right.mean():.4f}",
        "shipped_images": len(rows),
        "shipped_correct": right[rows].sum(),
        "epochs": arguments.epochs,
        "seed": arguments.seed,
        "torch": torch.__version__,
    }
    model = build_onnx(net, {key: str(value) for key, value in metadata.items()})
    difference = check_against_onnxruntime(model, held_out, probabilities)

    shipped = Digits(held_out.images[rows], held_out.labels[rows])
    written = save(arguments.out, model, shipped, probabilities[rows])

    print(f"held out     {right.sum()} of {len(right)} right ({right.mean():.2%})")
    print(f"shipped      {right[rows].sum()} of {len(rows)} right")
    print(f"onnxruntime  max abs difference to torch {difference:.1e}")
    for path in written:
        print(f"wrote        {path} ({path.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
