from __future__ import annotations

from fabricated_traces import dense

from advisor.cost.classes import OpClass
from advisor.cost.roofline import Work, key_of, work_of
from advisor.trace.records import Attribute, OpRecord, Phase, TensorRef


def op(
    name: str,
    inputs: tuple[TensorRef, ...],
    outputs: tuple[TensorRef, ...],
    flops: int = 0,
    **attributes: Attribute,
) -> OpRecord:
    return OpRecord(name, Phase.FORWARD, "", 0, inputs, outputs, flops, tuple(attributes.items()))


def half(storage: int, *shape: int) -> TensorRef:
    return dense(storage, shape, "float16")


def test_matmul_reads_both_and_writes_one() -> None:
    record = op("aten.mm.default", (half(0, 8, 16), half(1, 16, 32)), (half(2, 8, 32),), 2 * 8 * 16 * 32)
    assert work_of(record) == (Work(OpClass.MATMUL, "float16", 8192, 2 * (8 * 16 + 16 * 32 + 8 * 32)),)


def test_float32_runs_on_tf32_only_where_the_trace_says_so() -> None:
    refs = (dense(0, (4, 4), "float32"), dense(1, (4, 4), "float32"))
    plain = op("aten.mm.default", refs, (dense(2, (4, 4), "float32"),), 128, tf32=False)
    tensor = op("aten.mm.default", refs, (dense(2, (4, 4), "float32"),), 128, tf32=True)
    assert [work_of(plain)[0].precision, work_of(tensor)[0].precision] == ["float32", "tf32"]


def test_convolution_backward_is_a_kernel_for_each_gradient() -> None:
    grad, image, weight = half(0, 2, 8, 4, 4), half(1, 2, 8, 4, 4), half(2, 8, 8, 3, 3)
    record = op(
        "aten.convolution_backward.default", (grad, image, weight), (image, weight, half(5, 8)), 1000,
        groups=1, grad_input=True, grad_weight=True, grad_bias=True,
    )  # fmt: skip
    to_input, to_weight, to_bias = work_of(record)
    assert to_input == Work(
        OpClass.CONVOLUTION_CONTIGUOUS_HALF, "float16", 500, grad.nbytes + weight.nbytes + image.nbytes
    )
    assert to_weight == Work(
        OpClass.CONVOLUTION_CONTIGUOUS_HALF, "float16", 500, grad.nbytes + image.nbytes + weight.nbytes
    )
    assert to_bias == Work(OpClass.REDUCTION, "", 0, grad.nbytes)


def test_the_first_convolution_has_no_gradient_of_its_input() -> None:
    grad, image, weight = half(0, 2, 8, 4, 4), half(1, 2, 3, 4, 4), half(2, 8, 3, 3, 3)
    record = op(
        "aten.convolution_backward.default", (grad, image, weight), (weight,), 500,
        groups=1, grad_input=False, grad_weight=True, grad_bias=False,
    )  # fmt: skip
    assert [work.flops for work in work_of(record)] == [500]


def test_an_embedding_reads_the_rows_it_takes() -> None:
    table, index, rows = dense(0, (50_000, 64), "float32"), dense(1, (4, 8), "int64"), dense(2, (4, 8, 64), "float32")
    (work,) = work_of(op("aten.embedding.default", (table, index), (rows,)))
    assert work.num_bytes == 2 * rows.nbytes + index.nbytes


def test_in_place_scatter_touches_what_it_puts_in() -> None:
    table, index, rows = dense(0, (50_000, 64), "float32"), dense(1, (32,), "int64"), dense(2, (32, 64), "float32")
    (work,) = work_of(op("aten.index_add_.default", (table, index, rows), (table,)))
    assert work.num_bytes == index.nbytes + rows.nbytes + 2 * rows.nbytes


def test_fill_reads_nothing_and_copy_reads_its_source() -> None:
    big, source = dense(0, (1024,), "float32"), dense(1, (1024,), "float16")
    assert work_of(op("aten.zero_.default", (big,), (big,)))[0].num_bytes == 4096
    assert work_of(op("aten.copy_.default", (big, source), (big,)))[0].num_bytes == 4096 + 2048


def test_an_operand_used_twice_is_read_once() -> None:
    data = dense(0, (1024,), "float32")
    square = op("aten.mul.Tensor", (data, data), (dense(1, (1024,), "float32"),), pointwise=True)
    product = op(
        "aten.mul.Tensor", (data, dense(2, (1024,), "float32")), (dense(1, (1024,), "float32"),), pointwise=True
    )
    assert [work_of(square)[0].num_bytes, work_of(product)[0].num_bytes] == [8192, 12288]
    assert key_of(square) != key_of(product)


def test_foreach_launches_follow_the_limits_of_multi_tensor_apply() -> None:
    small = tuple(dense(i, (10,), "float32") for i in range(250))
    (work,) = work_of(op("aten._foreach_mul_.Scalar", small, small, num_tensors=250))
    assert work.num_kernels == 3  # 110 tensors in one launch
    large = (dense(0, (65_536 * 1000,), "float32"),)
    (work,) = work_of(op("aten._foreach_mul_.Scalar", large, large, num_tensors=1))
    assert work.num_kernels == 4  # 320 blocks in one launch


def test_a_causal_kernel_skips_half_of_the_scores() -> None:
    query = half(0, 2, 4, 128, 64)
    record = op("aten._scaled_dot_product_flash_attention.default", (query,) * 3, (query,), 1000, is_causal=True)
    assert work_of(record)[0].flops == 500


def test_views_launch_nothing() -> None:
    assert work_of(op("aten.view.default", (half(0, 4),), (half(0, 2, 2),))) == ()


def test_key_ignores_which_storages_but_not_their_layout() -> None:
    first = op("aten.relu.default", (half(0, 4, 4),), (half(1, 4, 4),), pointwise=True)
    second = op("aten.relu.default", (half(7, 4, 4),), (half(9, 4, 4),), pointwise=True)
    turned = op("aten.relu.default", (TensorRef(0, (4, 4), "float16", (1, 4)),), (half(1, 4, 4),), pointwise=True)
    assert key_of(first) == key_of(second) != key_of(turned)
