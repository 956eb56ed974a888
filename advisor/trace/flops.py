"""Exact FLOPs of the operators that are counted by FLOPs, from shapes alone. 1 multiply-add = 2. No torch.

Checked against `torch.utils.flop_counter.flop_registry` in the tests, which ignores `groups` in a convolution's
backward and knows nothing of cuDNN RNNs. Attention counts every score, as PaLM appendix B and torch do; a kernel that
skips the masked half of a causal one carries the attribute ("is_causal", True).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

Shape = tuple[int, ...]
Attributes = Mapping[str, str | int | float | bool]


def count(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    """FLOPs of one operator.

    Args:
        name: overload name, "aten.mm.default".
        inputs: shapes of the tensor arguments in schema order, lists flattened.
        outputs: shapes of the tensors returned.
        attributes: the record's attributes ("groups", "transposed", "grad_input", ...).
    """
    packet = name.rpartition(".")[0]
    rule = _RULES.get(packet)
    return rule(inputs, outputs, attributes) if rule else 0


def _mm(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    (m, k), (_, n) = inputs[0], inputs[1]
    return 2 * m * k * n


def _addmm(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    (m, k), (_, n) = inputs[1], inputs[2]
    return 2 * m * k * n


def _bmm(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    (b, m, k), (_, _, n) = inputs[0], inputs[1]
    return 2 * b * m * k * n


def _baddbmm(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    return _bmm(inputs[1:], outputs, attributes)


def _matrix_vector(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    return 2 * prod(inputs[0])


def _dot(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    return 2 * prod(inputs[0])


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    # Every weight meets every position of the output (of the input, if transposed) once per sample;
    # a weight (out, in / groups, *kernel) already has the groups divided out.
    image, weight = inputs[0], inputs[1]
    positions = prod(image[2:]) if attributes.get("transposed") else prod(outputs[0][2:])
    return 2 * image[0] * positions * prod(weight)


def _convolution_backward(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    grad, image, weight = inputs[0], inputs[1], inputs[2]
    positions = prod(image[2:]) if attributes.get("transposed") else prod(grad[2:])
    one = 2 * image[0] * positions * prod(weight)
    return one * (int(bool(attributes.get("grad_input"))) + int(bool(attributes.get("grad_weight"))))


def _attention(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    query, key, value = inputs[0], inputs[1], inputs[2]
    batch_heads, q, k = prod(query[:-2]), query[-2], key[-2]
    return 2 * batch_heads * q * k * (query[-1] + value[-1])


def _attention_backward(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    # Five products: scores again, then the gradients of value, scores, query, key (FlashAttention, arXiv:2205.14135).
    query, key, value = inputs[1], inputs[2], inputs[3]
    batch_heads, q, k = prod(query[:-2]), query[-2], key[-2]
    return 2 * batch_heads * q * k * (3 * query[-1] + 2 * value[-1])


def _rnn(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    # Every weight matrix meets every time step of every sequence once.
    weights = sum(prod(shape) for shape in inputs[1:] if len(shape) == 2)
    return 2 * prod(inputs[0][:-1]) * weights


def _mkldnn_rnn(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    # One layer: input, then two matrices, their biases and the states.
    return _rnn(inputs[:3], outputs, attributes)


def _rnn_backward(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    return 2 * _rnn(inputs, outputs, attributes)


def _mkldnn_rnn_backward(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Attributes) -> int:
    return 2 * _mkldnn_rnn(inputs, outputs, attributes)


_Rule = Callable[[Sequence[Shape], Sequence[Shape], Attributes], int]
_RULES: dict[str, _Rule] = {
    "aten.mm": _mm,
    "aten.addmm": _addmm,
    "aten._addmm_activation": _addmm,
    "aten.bmm": _bmm,
    "aten.baddbmm": _baddbmm,
    "aten.mv": _matrix_vector,
    "aten.addmv": lambda i, o, a: _matrix_vector(i[1:], o, a),
    "aten.dot": _dot,
    "aten.vdot": _dot,
    "aten._int_mm": _mm,
    "aten._scaled_mm": _mm,
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_overrideable": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_cudnn_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten._cudnn_rnn": _rnn,
    "aten._cudnn_rnn_backward": _rnn_backward,
    "aten.mkldnn_rnn_layer": _mkldnn_rnn,
    "aten.mkldnn_rnn_layer_backward": _mkldnn_rnn_backward,
}
