"""Regions of interest: pooling over regions of images, and non-maximum suppression."""

from __future__ import annotations

from ..errors import ShapeError
from ..ir.dtypes import int64
from ..ir.op import Op, op
from ..ir.types import TensorType
from .shapes import (
    dim,
    need_choice,
    need_rank,
    need_vector,
    same_dim,
    same_dtype,
)
from .window import need_elements

Ints = tuple[int, ...]


@op
class MaxRoiPool(Op):
    """Maximum over a grid of `pooled_shape` cells of each region [batch, x1, y1, x2, y2].

    [n, c, h, w] and [regions, 5] → [regions, c, *pooled_shape] (ONNX 22).
    """

    pooled_shape: Ints
    spatial_scale: float = 1.0

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        same_dtype(x, rois)
        need_rank(x, 4, "x")
        need_rank(rois, 2, "rois")
        same_dim(dim(rois, 1), 5, f"columns of rois {rois} and 5")
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise ShapeError(f"pooled_shape={self.pooled_shape}; it must be two positive sizes")
        return x.with_shape((dim(rois, 0), dim(x, 1), *self.pooled_shape))


@op
class RoiAlign(Op):
    """Mean or maximum of bilinear samples in a grid of cells of each region [x1, y1, x2, y2].

    [n, c, h, w], [regions, 4] and [regions] → [regions, c, output_height, output_width]
    (ONNX 22). A `sampling_ratio` of 0 takes as many samples as a cell has pixels, rounded up.
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    def infer(self, x: TensorType, rois: TensorType, batch_indices: TensorType) -> TensorType:
        same_dtype(x, rois)
        need_rank(x, 4, "x")
        need_rank(rois, 2, "rois")
        same_dim(dim(rois, 1), 4, f"columns of rois {rois} and 4")
        need_vector(batch_indices, dim(rois, 0), "batch_indices")
        modes = ("half_pixel", "output_half_pixel")
        need_choice(self.coordinate_transformation_mode, "coordinate_transformation_mode", *modes)
        need_choice(self.mode, "mode", "avg", "max")
        if min(self.output_height, self.output_width) < 1 or self.sampling_ratio < 0:
            raise ShapeError(f"{self}: sizes must be positive, sampling_ratio 0 or more")
        regions = same_dim(dim(rois, 0), dim(batch_indices, 0), "regions")
        if 0 not in (regions, dim(x, 1)):
            need_elements((dim(x, 2), dim(x, 3)))
        return x.with_shape((regions, dim(x, 1), self.output_height, self.output_width))


@op
class NonMaxSuppression(Op):
    """Boxes by descending score, without those that overlap a better one: int64 [selected, 3].

    A row is (batch, class, box). Boxes are [batch, boxes, 4], scores [batch, classes, boxes].

    Attributes:
        center_point_box: whether a box is (x, y, width, height) of its centre instead of two
            corners (y1, x1, y2, x2).
    """

    center_point_box: int = 0

    def infer(
        self,
        boxes: TensorType,
        scores: TensorType,
        max_output_boxes_per_class: TensorType | None = None,
        iou_threshold: TensorType | None = None,
        score_threshold: TensorType | None = None,
    ) -> TensorType:
        need_rank(boxes, 3, "boxes")
        need_rank(scores, 3, "scores")
        if boxes.shape is not None:
            same_dim(boxes.shape[2], 4, "the last axis of boxes and 4")
            if scores.shape is not None:
                same_dim(boxes.shape[0], scores.shape[0], "the batches of boxes and scores")
                same_dim(boxes.shape[1], scores.shape[2], "the counts of boxes and scores")
        scalars = {
            "max_output_boxes_per_class": max_output_boxes_per_class,
            "iou_threshold": iou_threshold,
            "score_threshold": score_threshold,
        }
        for name, scalar in scalars.items():
            need_rank(scalar, (0, 1), name)
        return TensorType(int64, (None, 3))
