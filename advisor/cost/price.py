"""`price`: a trace on a device, or one rank's trace on a cluster -> memory and time of one optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from advisor.cost.classes import OpClass
from advisor.cost.collectives import CollectiveTime, price_collectives
from advisor.cost.estimate import Estimate, MemoryEstimate, OperatorTime, TimeEstimate, UnpricedOperator
from advisor.cost.memory import estimate_memory
from advisor.cost.rates import Rates, rates_for
from advisor.cost.schedule import StepSchedule, schedule_step
from advisor.cost.timing import OperatorSeconds, operator_seconds, unpriced_names
from advisor.errors import ProfileError
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.trace.records import Phase, StepTrace


def price(
    trace: StepTrace,
    device: DeviceProfile,
    *,
    usable_bytes: int | None = None,
    expandable_segments: bool = False,
    cluster: ClusterProfile | None = None,
    mesh: Mesh | None = None,
    memory: MemoryEstimate | None = None,
) -> Estimate:
    """Memory and time of `trace` on `device`; time is None on a device known by its memory alone.

    With `cluster` and `mesh`, `trace` is what a strategy made of the step and its collectives are priced too. `memory`
    is what `estimate_memory` said of this trace, where that was asked before.

    Raises:
        ProfileError: the device has no memory size, or no peak for a dtype the step multiplies in.
    """
    if memory is None:
        memory = estimate_memory(trace, device, usable_bytes=usable_bytes, expandable_segments=expandable_segments)
    time, seconds = _timed(trace, device)
    notes = () if time is not None else (f"{device.title} states no rates: step time is left blank",)
    if time is not None and cluster is not None and mesh is not None and trace.collectives:
        collectives = price_collectives(trace, mesh=mesh, cluster=cluster, device=device)
        time = _with_communication(time, schedule_step(trace, op_seconds=seconds, collectives=collectives), collectives)
    devices = 1 if mesh is None else mesh.world_size
    return Estimate(memory=memory, time=time, num_devices=devices, notes=(*trace.notes, *notes))


def _with_communication(
    time: TimeEstimate, schedule: StepSchedule, collectives: Sequence[CollectiveTime]
) -> TimeEstimate:
    """`time` plus what communication shows; the band of the operators stays, communication is added to both ends."""
    exposed = schedule.exposed_communication_s
    step = time.step_s + exposed
    return replace(
        time,
        step_s=step,
        low_s=time.low_s + exposed,
        high_s=time.high_s + exposed,
        exposed_communication_s=exposed,
        mfu=None if time.mfu is None else time.mfu * time.step_s / step,
        hfu=None if time.hfu is None else time.hfu * time.step_s / step,
        sources=(*time.sources, *dict.fromkeys(f"collectives: {c.source}" for c in collectives)),
    )


def op_seconds(trace: StepTrace, device: DeviceProfile) -> tuple[float, ...]:
    """Seconds of each steady operator, run once, waiting for the host included.

    Weighted by `trace.repeats` they add up to the step. For placing collectives against compute.
    """
    return tuple(seconds.total_s for seconds in operator_seconds(trace, _rates(device)))


def estimate_time(trace: StepTrace, device: DeviceProfile) -> TimeEstimate | None:
    """Seconds of the steady step, or None where `device` states no rates."""
    return _timed(trace, device)[0]


def _timed(trace: StepTrace, device: DeviceProfile) -> tuple[TimeEstimate | None, tuple[float, ...]]:
    """The time estimate, and the seconds of each steady operator."""
    if (rates := rates_for(device)) is None:
        return None, ()
    ops = trace.steady_ops()
    priced = operator_seconds(trace, rates)
    repeats = [trace.repeats(op) for op in ops]
    totals = _add_up(priced, repeats)
    step = totals.compute_s + totals.memory_s + totals.launch_s + totals.transfer_s
    hardware_flops = trace.flops_per_step()
    model_flops = hardware_flops - sum(op.flops * trace.repeats(op) for op in ops if op.phase is Phase.RECOMPUTE)
    precision = _dominant_precision(totals, rates)
    low, high = rates.band
    estimate = TimeEstimate(
        step_s=step,
        low_s=step * low.value,
        high_s=step * high.value,
        compute_s=totals.compute_s,
        memory_bound_s=totals.memory_s,
        launch_bound_s=totals.launch_s,
        offload_s=totals.transfer_s,
        model_flops=model_flops,
        hardware_flops=hardware_flops,
        mfu=_utilisation(model_flops, step, precision, rates),
        hfu=_utilisation(hardware_flops, step, precision, rates),
        by_class=totals.lines(),
        unpriced=tuple(
            UnpricedOperator(name=name, count=count, bound_seconds=bound, module=module)
            for name, (count, bound, module) in sorted(unpriced_names(ops, priced, repeats).items())
        ),
        sources=_sources(totals, rates),
    )
    return estimate, tuple(seconds.total_s for seconds in priced)


@dataclass(slots=True)
class _Line:
    seconds: float = 0.0
    compute_s: float = 0.0
    num_kernels: int = 0
    flops: int = 0
    num_bytes: int = 0
    precisions: Counter[str] = field(default_factory=Counter)  # FLOPs by precision


@dataclass(slots=True)
class _Totals:
    compute_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0
    transfer_s: float = 0.0
    classes: dict[OpClass, _Line] = field(default_factory=dict)

    def lines(self) -> tuple[OperatorTime, ...]:
        return tuple(
            OperatorTime(
                op_class=op_class.value,
                seconds=line.seconds,
                num_kernels=line.num_kernels,
                flops=line.flops,
                num_bytes=line.num_bytes,
                bound="compute" if 2 * line.compute_s > line.seconds else "memory",
            )
            for op_class, line in sorted(self.classes.items(), key=lambda item: (-item[1].seconds, item[0]))
        )


def _add_up(priced: Sequence[OperatorSeconds], repeats: Sequence[int]) -> _Totals:
    totals = _Totals()
    counts: Counter[int] = Counter()
    distinct: dict[int, OperatorSeconds] = {}
    for seconds, times in zip(priced, repeats, strict=True):
        totals.launch_s += seconds.waited_s * times
        # Operators priced alike share their kernels: hundreds instead of tens of thousands to add up.
        counts[id(seconds.kernels)] += times
        distinct[id(seconds.kernels)] = seconds
        totals.transfer_s += seconds.transfer_s * times
    for key, seconds in distinct.items():
        times = counts[key]
        totals.launch_s += seconds.launch_s * times
        for kernel in seconds.kernels:
            line = totals.classes.setdefault(kernel.work.op_class, _Line())
            busy = kernel.busy_s * times
            if kernel.arithmetic_s > kernel.memory_s:
                totals.compute_s += busy
                line.compute_s += busy
            else:
                totals.memory_s += busy
            line.seconds += busy
            line.num_kernels += kernel.work.num_kernels * times
            line.flops += kernel.work.flops * times
            line.num_bytes += kernel.work.num_bytes * times
            if kernel.work.flops:
                line.precisions[kernel.work.precision] += kernel.work.flops * times
    return totals


def _dominant_precision(totals: _Totals, rates: Rates) -> str | None:
    """The precision that most FLOPs run in; None where there are no FLOPs."""
    flops: Counter[str] = Counter()
    for line in totals.classes.values():
        flops.update(line.precisions)
    return rates.precision(max(flops, key=lambda name: flops[name])) if flops else None


def _utilisation(flops: int, seconds: float, precision: str | None, rates: Rates) -> float | None:
    """MFU or HFU: share of the dense peak (PaLM, arXiv:2204.02311, appendix B)."""
    if precision is None or seconds <= 0:
        return None
    share = flops / (seconds * rates.device.peak_flops[precision].value)
    if share > max(1.0, rates.ceiling[precision].value):  # cards that clock beyond their datasheet do pass 1
        raise ProfileError(
            f"the step would use {share * 100:.0f} % of the {precision} peak of {rates.device.name}: "
            "it or the fit is wrong",
            hint="peaks are dense rates per device; check the profile with `advisor profiles check`",
        )
    return share


def _sources(totals: _Totals, rates: Rates) -> tuple[str, ...]:
    """A line for each source: what it gives, and where it is from."""
    given: dict[str, dict[str, None]] = {}  # a set that keeps its order
    evidence = [*rates.bandwidth_evidence()]
    for op_class, line in sorted(totals.classes.items()):
        if op_class is OpClass.UNPRICED:
            evidence.append((rates.slowest.source, "unpriced operators: bound by the slowest class"))
        else:
            evidence += rates.evidence(op_class, sorted(line.precisions))
    evidence += [(rates.kernel_launch.source, "launch of a kernel")]
    evidence += [(rates.host_launch.source, "launch of an operator"), (rates.band[0].source, "band")]
    if rates.device.host_bandwidth is not None and totals.transfer_s:
        evidence.append((rates.device.host_bandwidth.source, "host link, every transfer exposed"))
    for source, what in evidence:
        given.setdefault(source, {})[what] = None
    return tuple(f"{', '.join(what)}: {source}" for source, what in given.items())


def _rates(device: DeviceProfile) -> Rates:
    if (rates := rates_for(device)) is None:
        raise ProfileError(
            f"{device.name} states no bandwidth or no peak, so its operators can't be timed",
            hint="give memory_bandwidth and [peak] in a profile of your own",
        )
    return rates
