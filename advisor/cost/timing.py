"""When the kernels of one step run: a host that launches operators in order, a device that works them off in order.

The device starts a kernel when it is free and the host has launched it; the host waits for the device only where a
value is read back (`.item()`). Steps follow each other without a pause, so the second of two simulated steps counts: a
host that is ahead never shows, a step of tiny kernels takes as long as the host needs to launch them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.cost.classes import OpClass
from advisor.cost.rates import Rates
from advisor.cost.roofline import Key, Work, key_of, work_of
from advisor.errors import ProfileError
from advisor.trace.records import OpRecord, StepTrace

_SYNCHRONISES = frozenset(("aten._local_scalar_dense.default", "aten.item.default", "aten.nonzero.default"))


@dataclass(frozen=True, slots=True)
class KernelTime:
    work: Work
    arithmetic_s: float  # what its FLOPs alone would take
    memory_s: float  # what its bytes alone would take

    @property
    def busy_s(self) -> float:
        return max(self.arithmetic_s, self.memory_s)


@dataclass(frozen=True, slots=True)
class OperatorSeconds:
    """One operator of the steady step, once."""

    kernels: tuple[KernelTime, ...]
    busy_s: float  # kernels at work
    launch_s: float  # launch cost of its kernels on the device
    transfer_s: float = 0.0  # across the host link, or at work on the host
    waited_s: float = 0.0  # the device had nothing to do before it

    @property
    def total_s(self) -> float:
        return self.busy_s + self.launch_s + self.transfer_s + self.waited_s


def operator_seconds(trace: StepTrace, rates: Rates) -> tuple[OperatorSeconds, ...]:
    """Every operator of the steady step, with the device's waiting put before the operator it waited for."""
    on_host = frozenset(index for index, storage in enumerate(trace.storages) if storage.on_host)
    known: dict[Key, OperatorSeconds] = {}
    priced = []
    for op in trace.steady_ops():
        if on_host and (refs := op.inputs + op.outputs) and any(ref.storage in on_host for ref in refs):
            priced.append(_host_work(op, rates, on_host))
            continue
        key = key_of(op)
        if (seconds := known.get(key)) is None:
            seconds = known[key] = _kernel_work(op, rates)
        priced.append(seconds)
    return tuple(_with_waiting(trace.steady_ops(), priced, rates.host_launch.value))


def _kernel_work(op: OpRecord, rates: Rates) -> OperatorSeconds:
    try:
        kernels = tuple(KernelTime(work, *rates.seconds(work)) for work in work_of(op))
    except ProfileError as error:
        where = f" in module {op.module!r}" if op.module else ""
        raise ProfileError(f"{error.message} ({op.name}{where})", hint=error.hint) from None
    launches = sum(kernel.work.num_kernels for kernel in kernels)
    return OperatorSeconds(kernels, sum(kernel.busy_s for kernel in kernels), launches * rates.kernel_launch.value)


def _host_work(op: OpRecord, rates: Rates, on_host: frozenset[int]) -> OperatorSeconds:
    """An operator with a tensor in host memory: its bytes cross the host link.

    One that lies wholly in host memory (an offloaded optimizer) is priced as if they did: host memory is no slower than
    the link, so this errs on the slow side. Scalars such as Adam's step count cost their launch alone.
    """
    refs = {(ref.storage, ref.shape): ref for ref in op.inputs + op.outputs if ref.storage in on_host}
    num_bytes = sum(ref.nbytes for ref in refs.values() if ref.numel > 1)
    if not num_bytes:
        return _kernel_work(op, rates) if _on_device(op, on_host) else OperatorSeconds((), 0.0, 0.0)
    link = rates.device.host_bandwidth
    if link is None:
        raise ProfileError(
            f"{rates.device.name} states no host bandwidth, and {op.name} moves {num_bytes} bytes to or from the host",
            hint="add host_bandwidth to a profile of your own, or drop the offload",
        )
    return OperatorSeconds((), 0.0, 0.0, transfer_s=num_bytes / link.value)


def _on_device(op: OpRecord, on_host: frozenset[int]) -> bool:
    return any(ref.storage not in on_host for ref in op.inputs + op.outputs)


def _with_waiting(
    ops: Sequence[OpRecord], priced: Sequence[OperatorSeconds], host_launch: float
) -> list[OperatorSeconds]:
    waits = [0.0] * len(ops)
    host = device = 0.0
    for _ in range(2):
        for index, (op, seconds) in enumerate(zip(ops, priced, strict=True)):
            if op.name in _SYNCHRONISES:
                host = max(host, device)
            host += host_launch
            work = seconds.busy_s + seconds.launch_s + seconds.transfer_s
            if work:
                waits[index] = max(0.0, host - device)
                device = max(host, device) + work
    return [
        OperatorSeconds(s.kernels, s.busy_s, s.launch_s, s.transfer_s, wait) if wait else s
        for s, wait in zip(priced, waits, strict=True)
    ]


def unpriced_names(
    ops: Sequence[OpRecord], priced: Sequence[OperatorSeconds], repeats: Sequence[int]
) -> Mapping[str, tuple[int, float, str]]:
    """Name -> (count, seconds bound by bytes, first module) of the operators no class knows."""
    found: dict[str, tuple[int, float, str]] = {}
    for op, seconds, times in zip(ops, priced, repeats, strict=True):
        if any(kernel.work.op_class is OpClass.UNPRICED for kernel in seconds.kernels):
            count, bound, module = found.get(op.name, (0, 0.0, op.module))
            found[op.name] = (count + times, bound + times * seconds.busy_s, module)
    return found
