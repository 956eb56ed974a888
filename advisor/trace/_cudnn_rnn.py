"""cuDNN RNNs: one fused operator forward and one backward, which fake tensors have no kernels for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# cuDNN's numbers, aten/src/ATen/native/cudnn/RNN.cpp
_RELU, _TANH, _LSTM, _GRU = range(4)


def _lstm(
    input: torch.Tensor,
    hx: list[torch.Tensor],
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden, projected = hx[1].shape[-1], hx[0].shape[-1]
    proj_size = 0 if hidden == projected else projected
    stride = (4 if has_biases else 2) + (1 if proj_size else 0)
    rest = hidden, proj_size, num_layers, batch_first, dropout, train, bidirectional
    output, hy, cy = _call(input, params, stride, hx[0], hx[1], _LSTM, *rest)[:3]
    return output, hy, cy


def _rnn(mode: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def kernel(
        input: torch.Tensor,
        hx: torch.Tensor,
        params: list[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rest = hx.shape[-1], 0, num_layers, batch_first, dropout, train, bidirectional
        output, hy = _call(input, params, 4 if has_biases else 2, hx, None, mode, *rest)[:2]
        return output, hy

    return kernel


def _call(
    input: torch.Tensor, params: list[torch.Tensor], stride: int, hx: torch.Tensor, cx: torch.Tensor | None, *rest: Any
) -> Any:
    if torch.is_autocast_enabled("cpu"):  # autocast/RNN: weights are cast and flattened anew
        dtype = torch.get_autocast_dtype("cpu")
        input, hx = input.to(dtype), hx.to(dtype)
        params, cx = [p.to(dtype) for p in params], None if cx is None else cx.to(dtype)
    return torch.ops.aten._cudnn_rnn(input, params, stride, None, hx, cx, *rest, [], None)


# What stands in for the operators of CPU tensors, by overload.
KERNELS: dict[str, Callable[..., Any]] = {
    "rnn_relu.input": _rnn(_RELU),
    "rnn_tanh.input": _rnn(_TANH),
    "gru.input": _rnn(_GRU),
    "lstm.input": _lstm,
}


def forward(args: Any) -> tuple[torch.Tensor, ...]:
    """Output, hy, cy, reserve, weight buffer of `aten::_cudnn_rnn`, as cuDNN gives them.

    The reserve holds, for each layer, direction and time step, the gates and the new state that backward needs (4 gates
    + 2 for an LSTM, 3 + 2 for a GRU, 1 + 1 otherwise): an assumption; cuDNN does not document the size.
    """
    data, _, _, _, hx, cx, mode, hidden, proj, layers, batch_first, _, train, bidirectional = args[:14]
    directions = 2 if bidirectional else 1
    batch, steps = (data.shape[0], data.shape[1]) if batch_first else (data.shape[1], data.shape[0])
    width = (proj or hidden) * directions
    shape = (batch, steps, width) if batch_first else (steps, batch, width)
    per_step = {_LSTM: 6, _GRU: 5}.get(mode, 2) * hidden * directions * layers
    reserve = data.new_empty(batch * steps * per_step * data.element_size() if train else 0, dtype=torch.uint8)
    cy = torch.empty_like(cx) if cx is not None else data.new_empty(0)
    return data.new_empty(shape), torch.empty_like(hx), cy, reserve, data.new_empty(0)


def backward(args: Any) -> tuple[Any, ...]:
    """Gradients of input, hx, cx and the weights, of `aten::_cudnn_rnn_backward`."""
    data, weights, _, _, hx, cx = args[:6]
    dcx = torch.empty_like(cx) if cx is not None else None
    return torch.empty_like(data), torch.empty_like(hx), dcx, [torch.empty_like(w) for w in weights]
