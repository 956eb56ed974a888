"""Which class of kernels an operator runs: operators of one class share their rates.

Tables of aten names, checked against the operators of torch 2.13; the tracer's ("pointwise", True), from
`torch.Tag.pointwise`, covers the rest of the element-wise ones. What nobody knows is `UNPRICED`: counted and listed.
"""

from __future__ import annotations

from enum import StrEnum

from advisor.trace.records import OpRecord, TensorRef
from advisor.units import dtype_bytes


class OpClass(StrEnum):
    """The words of the "where the step goes" table."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched matmul"
    CONVOLUTION = "convolution"
    CONVOLUTION_CONTIGUOUS_HALF = "convolution, contiguous 16-bit"  # cuDNN's kernels want channels_last: it converts
    GROUPED_CONVOLUTION = "grouped convolution"
    GROUPED_CONVOLUTION_CHANNELS_LAST = "grouped convolution, channels_last"
    DEPTHWISE_CONVOLUTION = "depthwise convolution"
    DEPTHWISE_CONVOLUTION_CHANNELS_LAST = "depthwise convolution, channels_last"
    TRANSPOSED_CONVOLUTION = "transposed convolution"
    ATTENTION = "attention"
    BATCH_NORM = "batch norm"
    NORMALISATION = "normalisation"  # layer, group, RMS and instance norm
    SOFTMAX = "softmax and loss"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    POOLING = "pooling and resampling"
    COPY = "copy"  # same layout: dtype casts, concatenation
    LAYOUT = "layout conversion"  # copies that change the order of the dimensions in memory
    GATHER = "gather and scatter"
    OPTIMIZER = "optimizer"
    RNN = "recurrent"
    FFT = "fft"
    SORT = "sort"
    NO_KERNEL = "no kernel"
    UNPRICED = "unpriced"


CONVOLUTION_CLASSES = frozenset(
    (
        OpClass.CONVOLUTION,
        OpClass.CONVOLUTION_CONTIGUOUS_HALF,
        OpClass.GROUPED_CONVOLUTION,
        OpClass.GROUPED_CONVOLUTION_CHANNELS_LAST,
        OpClass.DEPTHWISE_CONVOLUTION,
        OpClass.DEPTHWISE_CONVOLUTION_CHANNELS_LAST,
        OpClass.TRANSPOSED_CONVOLUTION,
    )
)
MATMUL_CLASSES = frozenset((OpClass.MATMUL, OpClass.BATCHED_MATMUL))
# Limited by FLOPs or by bytes; the others by bytes alone.
ARITHMETIC_CLASSES = CONVOLUTION_CLASSES | MATMUL_CLASSES | {OpClass.ATTENTION, OpClass.RNN}


def base_name(name: str) -> str:
    """The operator without namespace, overload and the underscore of its in-place form: "aten.add_.Tensor" -> "add"."""
    parts = name.split(".")
    base = parts[1] if len(parts) > 1 else parts[0]
    return base.rstrip("_") or base


def classify(op: OpRecord) -> OpClass:
    """The class of `op`, from its name, its shapes and its attributes."""
    if op.name.startswith(("prim.", "prims.device_put")):
        return OpClass.NO_KERNEL
    name = base_name(op.name)
    if (known := _CLASS_OF_NAME.get(name)) is not None:
        return known
    if name in _CONVOLUTIONS:
        return _convolution_class(op, name)
    if name in _COPIES:
        return OpClass.COPY if _same_order(op) else OpClass.LAYOUT
    if name.startswith(("_foreach_", "_fused_ada", "_fused_sgd")):
        return OpClass.OPTIMIZER
    if name.startswith(("_fft_", "fft_")):
        return OpClass.FFT
    if op.attribute("pointwise"):
        return OpClass.POINTWISE
    if op.attribute("reduction"):
        return OpClass.REDUCTION
    return OpClass.MATMUL if op.flops else OpClass.UNPRICED


def _convolution_class(op: OpRecord, name: str) -> OpClass:
    if op.attribute("transposed") or "transpose" in name:
        return OpClass.TRANSPOSED_CONVOLUTION
    image, weight = op.inputs[1:3] if name.endswith("backward") else op.inputs[:2]
    channels_last = _is_channels_last(image)
    if (op.attribute("groups") or 1) == 1:
        converts = not channels_last and dtype_bytes(image.dtype) == 2
        return OpClass.CONVOLUTION_CONTIGUOUS_HALF if converts else OpClass.CONVOLUTION
    if weight.shape[1] == 1:
        return OpClass.DEPTHWISE_CONVOLUTION_CHANNELS_LAST if channels_last else OpClass.DEPTHWISE_CONVOLUTION
    return OpClass.GROUPED_CONVOLUTION_CHANNELS_LAST if channels_last else OpClass.GROUPED_CONVOLUTION


def _is_channels_last(image: TensorRef) -> bool:
    return len(image.strides) > 2 and image.shape[1] > 1 and image.strides[1] == 1 and max(image.shape[2:]) > 1


def _same_order(op: OpRecord) -> bool:
    if not op.inputs or not op.outputs:
        return True
    return _dimension_order(op.inputs[-1]) == _dimension_order(op.outputs[0])


def _dimension_order(ref: TensorRef) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost in memory; those of size one and expanded ones don't count."""
    if not ref.strides:
        return tuple(dim for dim, size in enumerate(ref.shape) if size > 1)
    dims = [dim for dim, (size, stride) in enumerate(zip(ref.shape, ref.strides, strict=True)) if size > 1 and stride]
    return tuple(sorted(dims, key=lambda dim: -ref.strides[dim]))


_CONVOLUTION_NAMES = """convolution convolution_backward _convolution convolution_overrideable
    convolution_backward_overrideable cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu
    cudnn_convolution_add_relu mkldnn_convolution miopen_convolution miopen_convolution_transpose
    miopen_depthwise_convolution _conv_depthwise2d conv_depthwise3d slow_conv2d_forward _slow_conv2d_forward
    _slow_conv2d_backward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
    slow_conv_transpose3d"""
_CONVOLUTIONS = frozenset(_CONVOLUTION_NAMES.split())
_COPIES = frozenset(("clone", "copy", "_to_copy", "contiguous", "to", "copy_from", "lift_fresh_copy"))

_NAMES: dict[OpClass, str] = {
    OpClass.NO_KERNEL: """
        view _unsafe_view reshape _reshape_alias t transpose permute expand expand_as slice select split
        split_with_sizes unbind chunk tensor_split unsqueeze squeeze detach alias as_strided diagonal narrow unfold
        movedim real imag conj _conj _neg_view view_as_real view_as_complex view_as flatten unflatten swapaxes swapdims
        values indices _values _indices crow_indices col_indices lift lift_fresh resize set resize_as
        empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor
        is_same_size is_pinned size stride numel dim sym_size sym_numel sym_stride sym_storage_offset storage_offset
        record_stream _local_scalar_dense item _assert_async _assert_scalar _assert_tensor_metadata
        _functional_assert_async sym_constrain_range sym_constrain_range_for_size _resize_output _version
        _cudnn_init_dropout_state is_nonzero device _unpack_dual _make_dual _pin_memory
        unsafe_split unsafe_chunk unsafe_split_with_sizes resolve_conj resolve_neg _nested_tensor_size""",
    OpClass.MATMUL: """
        mm addmm mv addmv addr ger outer dot vdot linear linear_backward matmul _scaled_mm _scaled_mm_v2 _int_mm
        _addmm_activation mkldnn_linear _weight_int4pack_mm _weight_int8pack_mm _mixed_dtypes_linear
        mkldnn_linear_backward_input mkldnn_linear_backward_weights _sparse_semi_structured_linear _sparse_addmm
        addbmm""",
    OpClass.BATCHED_MATMUL: """
        bmm baddbmm _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 einsum _trilinear _cdist_forward
        _cdist_backward""",
    OpClass.ATTENTION: """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward
        _scaled_dot_product_attention_math_for_mps scaled_dot_product_attention
        _flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
        _cudnn_attention_forward _cudnn_attention_backward flex_attention flex_attention_backward""",
    OpClass.BATCH_NORM: """
        native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward miopen_batch_norm
        miopen_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional
        _batch_norm_no_update batch_norm_backward _batch_norm_impl_index _batch_norm_impl_index_backward
        batch_norm_stats batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_backward_reduce
        batch_norm_backward_elemt""",
    OpClass.NORMALISATION: """
        native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm
        _fused_rms_norm_backward rms_norm _weight_norm_interface _weight_norm_interface_backward renorm
        embedding_renorm""",
    OpClass.SOFTMAX: """
        _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax _masked_softmax
        _masked_softmax_backward logsumexp _logcumsumexp nll_loss_forward nll_loss_backward nll_loss2d_forward
        nll_loss2d_backward nll_loss _ctc_loss _ctc_loss_backward _cudnn_ctc_loss cross_entropy_loss
        binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits mse_loss mse_loss_backward
        huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
        soft_margin_loss_backward multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
        multilabel_margin_loss_backward kl_div l1_loss""",
    OpClass.POINTWISE: """
        native_dropout native_dropout_backward _fused_dropout bernoulli uniform normal random exponential rand randn
        rand_like randn_like randint randint_like randperm zeros zeros_like ones ones_like full full_like fill zero
        new_zeros new_ones new_full scalar_tensor arange linspace logspace eye tril triu tril_indices triu_indices
        elu_backward glu glu_backward hardshrink_backward hardsigmoid_backward hardswish hardswish_backward
        hardtanh_backward leaky_relu_backward log_sigmoid_forward log_sigmoid_backward mish_backward
        rrelu_with_noise rrelu_with_noise_backward softplus_backward softshrink_backward prelu _prelu_kernel
        _prelu_kernel_backward masked_fill where lerp _masked_scale fake_quantize_per_tensor_affine_cachemask
        fake_quantize_per_channel_affine_cachemask cross linalg_cross one_hot polar complex isin
        _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
        _amp_update_scale normal_functional bucketize searchsorted quantize_per_tensor dequantize
        value_selecting_reduction_backward _transform_bias_rescale_qkv native_norm trace_backward""",
    OpClass.REDUCTION: """
        sum mean amax amin max min argmax argmin aminmax _aminmax prod std std_mean var var_mean norm
        linalg_vector_norm any all count_nonzero cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp
        nansum median nanmedian trace histc bincount _is_all_true _is_any_true equal dist linalg__powsum""",
    OpClass.POOLING: """
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
        max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
        adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
        fractional_max_pool2d fractional_max_pool2d_backward max_unpool2d max_unpool3d
        upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
        upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward
        upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
        upsample_trilinear3d upsample_trilinear3d_backward _upsample_nearest_exact1d
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d _upsample_nearest_exact3d_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
        grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward cudnn_grid_sampler
        cudnn_grid_sampler_backward affine_grid_generator im2col col2im unfold_backward""",
    OpClass.COPY: """
        cat stack _stack constant_pad_nd reflection_pad1d reflection_pad1d_backward reflection_pad2d
        reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d
        replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward slice_backward select_backward slice_scatter select_scatter as_strided_scatter
        diagonal_backward diagonal_scatter diag_embed repeat repeat_interleave tile roll flip narrow_copy slice_copy
        select_copy expand_copy alias_copy view_copy split_copy split_with_sizes_copy unbind_copy _chunk_cat""",
    OpClass.LAYOUT: """
        pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle permute_copy transpose_copy t_copy
        rot90""",
    OpClass.GATHER: """
        embedding embedding_dense_backward embedding_backward embedding_sparse_backward _embedding_bag
        _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward gather gather_backward
        scatter scatter_add scatter_reduce index index_select index_select_backward index_put _index_put_impl
        _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate index_add index_copy
        index_fill index_reduce take put masked_select masked_scatter masked_scatter_backward segment_reduce
        _segment_reduce_backward nonzero nonzero_static argwhere""",
    OpClass.OPTIMIZER: "_amp_foreach_non_finite_check_and_unscale _fused_adagrad _fused_sgd",
    OpClass.RNN: """
        _cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward
        lstm gru rnn_tanh rnn_relu""",
    OpClass.SORT: """
        sort topk argsort kthvalue mode unique_consecutive _unique _unique2 unique_dim msort multinomial""",
}
_CLASS_OF_NAME = {name: op_class for op_class, names in _NAMES.items() for name in names.split()}
