"""What this machine's CPU does per second, measured: the rates behind every prediction for a CPU. No torch at import.

Each rate is the work of one kernel over its time, repeated until the median settles or its share of the time is up.
Known limitations: one shape per kernel (pointwise by size, because of caches); all threads; eager. Other work on the
machine lowers every rate and shows as a wide spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from advisor.measure.spread import Spread, summarise

if TYPE_CHECKING:
    import torch

Clock = Callable[[], float]

# A sample must last for the stopwatch, and a scheduler's time slice of some milliseconds, not to matter: kernels are
# repeated, and the matmul grows, until it does.
_LEAST_SAMPLE_S = 0.1
_MATMUL_SIZES = (256, 512, 1024, 2048, 4096)
_NUM_PROBES = 3  # the quickest counts: a first call, or other work on the machine, must not end the search
# ResNet-50's 3 x 3 convolutions at 28 x 28 (He et al. 2015, arXiv:1512.03385, table 1), a batch of 8.
_CONVOLUTION_BATCH, _CHANNELS, _PIXELS, _KERNEL = 8, 128, 28, 3
# STREAM's rule: each array at least four times the last-level cache; 128 MiB does for 32 MiB of it.
_STREAM_BYTES = 128 * 1024**2
_POINTWISE_BYTES = (1024**2, 4 * 1024**2, 16 * 1024**2, 64 * 1024**2)  # from inside the cache to beyond it
_CHAIN_LENGTH = 500
_NUM_KERNELS = 6 + len(_POINTWISE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Median and 10th to 90th percentile of repeated runs, in the unit the field's name says."""

    median: float
    low: float
    high: float
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """Achieved rates of one machine with one torch. FLOPs: 1 multiply-add = 2. Bytes: read and written, each once."""

    device: str
    software: str
    matmul_float32_flops_per_s: Rate
    matmul_bfloat16_flops_per_s: Rate
    convolution_flops_per_s: Rate  # float32, forward and backward
    copy_bytes_per_s: Rate
    triad_bytes_per_s: Rate
    pointwise_bytes_per_s: tuple[tuple[int, Rate], ...]  # (bytes of one tensor, rate): two read, a new one written
    operator_overhead_s: Rate  # of one operator on one element, forward with autograd and backward averaged


def measure_cpu_rates(time_limit_s: float = 20.0, *, clock: Clock = time.perf_counter) -> CpuRates:
    """Measure this machine within about `time_limit_s`, shared among the kernels; each runs twice at least."""
    import torch

    from advisor.measure.backends.cpu import BACKEND
    from advisor.measure.runner import software

    watch = _Watch(clock=clock, deadline=clock() + time_limit_s)
    with torch.random.fork_rng(devices=[]):
        return CpuRates(
            device=BACKEND.describe(),
            software=software(),
            matmul_float32_flops_per_s=_matmul(watch, torch.float32),
            matmul_bfloat16_flops_per_s=_matmul(watch, torch.bfloat16),
            convolution_flops_per_s=_convolution(watch),
            copy_bytes_per_s=_copy(watch),
            triad_bytes_per_s=_triad(watch),
            pointwise_bytes_per_s=tuple((size, _pointwise(watch, size)) for size in _POINTWISE_BYTES),
            operator_overhead_s=_operator_overhead(watch),
        )


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Repeats a kernel until its median settles or its share of the time left is up."""

    clock: Clock
    deadline: float
    kernels_left: int = _NUM_KERNELS

    @property
    def share_s(self) -> float:
        return (self.deadline - self.clock()) / self.kernels_left

    def quickest(self, kernel: Callable[[], object]) -> float:
        return min(self._sample(kernel, 1) for _ in range(_NUM_PROBES))

    def times(self, kernel: Callable[[], object]) -> Spread:
        deadline = self.clock() + self.share_s
        self.kernels_left -= 1
        kernel()  # warm up
        repeats = 1
        while (sample_s := self._sample(kernel, repeats)) < _LEAST_SAMPLE_S and self.clock() < deadline:
            repeats *= 2
        samples = [sample_s / repeats]
        while self.clock() < deadline and not summarise(samples).settled:
            samples.append(self._sample(kernel, repeats) / repeats)
        return summarise(samples)

    def _sample(self, kernel: Callable[[], object], repeats: int) -> float:
        start = self.clock()
        for _ in range(repeats):
            kernel()
        return self.clock() - start

    def rate(self, kernel: Callable[[], object], *, work: float) -> Rate:
        """`work` per second."""
        spread = self.times(kernel)
        return Rate(
            median=work / spread.median, low=work / spread.high, high=work / spread.low, num_runs=spread.num_runs
        )


def _matmul(watch: _Watch, dtype: torch.dtype) -> Rate:
    import torch

    for size in _MATMUL_SIZES:
        kernel = partial(torch.matmul, *(torch.randn(size, size).to(dtype) for _ in range(2)))
        took_s = watch.quickest(kernel)
        if took_s >= _LEAST_SAMPLE_S or 8 * took_s * _NUM_PROBES > watch.share_s:  # the next size does 8 times the work
            break
    return watch.rate(kernel, work=2 * size**3)


def _convolution(watch: _Watch) -> Rate:
    """Forward, and backward towards input and weight: three times the forward's FLOPs."""
    import torch

    shape = (_CONVOLUTION_BATCH, _CHANNELS, _PIXELS, _PIXELS)
    image = torch.randn(shape, requires_grad=True)
    weight = torch.randn(_CHANNELS, _CHANNELS, _KERNEL, _KERNEL, requires_grad=True)
    gradient = torch.randn(shape)

    def kernel() -> None:
        out = torch.nn.functional.conv2d(image, weight, padding=_KERNEL // 2)
        torch.autograd.grad(out, (image, weight), gradient)

    return watch.rate(kernel, work=3 * 2 * image.numel() * _CHANNELS * _KERNEL**2)


def _copy(watch: _Watch) -> Rate:
    source, target = _filled(_STREAM_BYTES, 2)
    return watch.rate(lambda: target.copy_(source), work=2 * _STREAM_BYTES)


def _triad(watch: _Watch) -> Rate:
    """STREAM's `a = b + s c`, into an array that is there."""
    import torch

    first, second, target = _filled(_STREAM_BYTES, 3)
    return watch.rate(lambda: torch.add(first, second, alpha=2.0, out=target), work=3 * _STREAM_BYTES)


def _pointwise(watch: _Watch, num_bytes: int) -> Rate:
    """A product into a new tensor, as a model's forward does it: with what taking fresh memory costs."""
    first, second = _filled(num_bytes, 2)
    return watch.rate(lambda: first * second, work=3 * num_bytes)


def _filled(num_bytes: int, count: int) -> Iterator[torch.Tensor]:
    import torch

    return (torch.ones(num_bytes // torch.float32.itemsize) for _ in range(count))


def _operator_overhead(watch: _Watch) -> Rate:
    """A chain of products of one element: as many operators in backward as in forward."""
    import torch

    start, factor = torch.ones(1, requires_grad=True), torch.ones(1)

    def kernel() -> None:
        value = start
        for _ in range(_CHAIN_LENGTH):
            value = value * factor
        torch.autograd.grad(value, start)

    spread = watch.times(kernel)
    num_operators = 2 * _CHAIN_LENGTH
    return Rate(
        median=spread.median / num_operators,
        low=spread.low / num_operators,
        high=spread.high / num_operators,
        num_runs=spread.num_runs,
    )
