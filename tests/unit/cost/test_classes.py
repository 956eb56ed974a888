from __future__ import annotations

import pytest
from fabricated_traces import dense

from advisor.cost.classes import OpClass, base_name, classify
from advisor.trace.records import Attribute, OpRecord, Phase, TensorRef

NCHW = (4, 8, 16, 16)


def op(name: str, *refs: TensorRef, out: TensorRef | None = None, flops: int = 0, **attributes: Attribute) -> OpRecord:
    outputs = (out,) if out else ()
    return OpRecord(name, Phase.FORWARD, "", 0, refs, outputs, flops, tuple(attributes.items()))


def image(*, channels_last: bool = False) -> TensorRef:
    strides = (2048, 1, 128, 8) if channels_last else (2048, 256, 16, 1)
    return TensorRef(0, NCHW, "float16", strides)


@pytest.mark.parametrize(
    "name, base", [("aten.add_.Tensor", "add"), ("aten.mm.default", "mm"), ("prims.iota.default", "iota"), ("x", "x")]
)
def test_base_name(name: str, base: str) -> None:
    assert base_name(name) == base


@pytest.mark.parametrize(
    "name, op_class",
    [
        ("aten.mm.default", OpClass.MATMUL),
        ("aten.addmm.default", OpClass.MATMUL),
        ("aten.bmm.default", OpClass.BATCHED_MATMUL),
        ("aten._scaled_dot_product_flash_attention_backward.default", OpClass.ATTENTION),
        ("aten.cudnn_batch_norm.default", OpClass.BATCH_NORM),
        ("aten.native_layer_norm.default", OpClass.NORMALISATION),
        ("aten._log_softmax.default", OpClass.SOFTMAX),
        ("aten.embedding_dense_backward.default", OpClass.GATHER),
        ("aten._foreach_addcdiv_.ScalarList", OpClass.OPTIMIZER),
        ("aten._fused_adamw_.default", OpClass.OPTIMIZER),
        ("aten._cudnn_rnn.default", OpClass.RNN),
        ("aten._fft_r2c.default", OpClass.FFT),
        ("aten.topk.default", OpClass.SORT),
        ("aten.max_pool2d_with_indices.default", OpClass.POOLING),
        ("aten.sum.dim_IntList", OpClass.REDUCTION),
        ("aten.view.default", OpClass.NO_KERNEL),
        ("aten.as_strided_.default", OpClass.NO_KERNEL),
        ("aten.empty_like.default", OpClass.NO_KERNEL),
        ("prim.device.default", OpClass.NO_KERNEL),
        ("mylib.fancy.default", OpClass.UNPRICED),
    ],
)
def test_by_name(name: str, op_class: OpClass) -> None:
    assert classify(op(name)) is op_class


def test_the_pointwise_tag_covers_names_no_table_has() -> None:
    assert classify(op("mylib.fancy.default", pointwise=True)) is OpClass.POINTWISE
    assert classify(op("mylib.fancy.default", reduction=True)) is OpClass.REDUCTION
    assert classify(op("mylib.fancy.default", flops=8)) is OpClass.MATMUL


@pytest.mark.parametrize(
    "weight, groups, channels_last, op_class",
    [
        ((8, 8, 3, 3), 1, False, OpClass.CONVOLUTION_CONTIGUOUS_HALF),
        ((8, 8, 3, 3), 1, True, OpClass.CONVOLUTION),
        ((8, 4, 3, 3), 2, False, OpClass.GROUPED_CONVOLUTION),
        ((8, 4, 3, 3), 2, True, OpClass.GROUPED_CONVOLUTION_CHANNELS_LAST),
        ((8, 1, 3, 3), 8, False, OpClass.DEPTHWISE_CONVOLUTION),
        ((16, 1, 3, 3), 8, True, OpClass.DEPTHWISE_CONVOLUTION_CHANNELS_LAST),
    ],
)
def test_convolutions(weight: tuple[int, ...], groups: int, channels_last: bool, op_class: OpClass) -> None:
    data, kernel = image(channels_last=channels_last), dense(1, weight, "float16")
    assert classify(op("aten.convolution.default", data, kernel, groups=groups)) is op_class
    backward = op("aten.convolution_backward.default", data, data, kernel, groups=groups, grad_input=True)
    assert classify(backward) is op_class


def test_float32_convolutions_take_both_layouts_as_they_are() -> None:
    data, kernel = dense(0, NCHW, "float32"), dense(1, (8, 8, 3, 3), "float32")
    assert classify(op("aten.convolution.default", data, kernel, groups=1)) is OpClass.CONVOLUTION


def test_transposed_convolution() -> None:
    record = op("aten.convolution.default", image(), dense(1, (8, 8, 2, 2), "float16"), transposed=True, groups=1)
    assert classify(record) is OpClass.TRANSPOSED_CONVOLUTION


def test_a_copy_that_reorders_is_a_layout_conversion() -> None:
    assert classify(op("aten._to_copy.default", image(), out=image())) is OpClass.COPY
    assert classify(op("aten.clone.default", image(), out=image(channels_last=True))) is OpClass.LAYOUT
    matrix = TensorRef(0, (3, 5), "float32", (1, 3))
    assert classify(op("aten.clone.default", matrix, out=dense(1, (3, 5), "float32"))) is OpClass.LAYOUT
