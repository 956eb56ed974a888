"""`price`: a trace on a device, or one rank's trace on a cluster -> memory and time of one optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from advisor.cost.classes import OpClass
from advisor.cost.collectives import price_collectives
from advisor.cost.estimate import Estimate, OperatorTime, TimeEstimate, UnpricedOperator
from advisor.cost.memory import estimate_memory
from advisor.cost.rates import Rates, rates_for
from advisor.cost.schedule import schedule_step
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
) -> Estimate:
    """Memory and time of `trace` on `device`; time is None on a device known by its memory alone.

    With `cluster` and `mesh`, `trace` is what a strategy made of the step and its collectives are priced too.

    Raises:
        ProfileError: the device has no memory size, or no peak for a dtype the step multiplies in.
    """
    memory = estimate_memory(trace, device, usable_bytes=usable_bytes, expandable_segments=expandable_segments)
    time = estimate_time(trace, device)
    notes = () if time is not None else (f"{device.title} states no rates: step time is left blank",)
    if time is not None and cluster is not None and mesh is not None and trace.collectives:
        time = _with_communication(time, trace, device, cluster=cluster, mesh=mesh)
    devices = 1 if mesh is None else mesh.world_size
    return Estimate(memory=memory, time=time, num_devices=devices, notes=(*trace.notes, *notes))


def _with_communication(
    time: TimeEstimate, trace: StepTrace, device: DeviceProfile, *, cluster: ClusterProfile, mesh: Mesh
) -> TimeEstimate:
    """`time` plus what communication shows; the band of the operators stays, communication is added to both ends."""
    collectives = price_collectives(trace, mesh=mesh, cluster=cluster, device=device)
    exposed = schedule_step(
        trace, op_seconds=op_seconds(trace, device), collectives=collectives
    ).exposed_communication_s
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
    if (rates := rates_for(device)) is None:
        return None
    ops = trace.steady_ops()
    priced = operator_seconds(trace, rates)
    repeats = [trace.repeats(op) for op in ops]
    totals = _add_up(priced, repeats)
    step = totals.compute_s + totals.memory_s + totals.launch_s + totals.transfer_s
    hardware_flops = trace.flops_per_step()
    model_flops = hardware_flops - sum(op.flops * trace.repeats(op) for op in ops if op.phase is Phase.RECOMPUTE)
    peak = _dominant_peak(totals, rates)
    low, high = rates.band
    return TimeEstimate(
        step_s=step,
        low_s=step * low.value,
        high_s=step * high.value,
        compute_s=totals.compute_s,
        memory_bound_s=totals.memory_s,
        launch_bound_s=totals.launch_s,
        offload_s=totals.transfer_s,
        model_flops=model_flops,
        hardware_flops=hardware_flops,
        mfu=_utilisation(model_flops, step, peak, rates),
        hfu=_utilisation(hardware_flops, step, peak, rates),
        by_class=totals.lines(),
        unpriced=tuple(
            UnpricedOperator(name=name, count=count, bound_seconds=bound, module=module)
            for name, (count, bound, module) in sorted(unpriced_names(ops, priced, repeats).items())
        ),
        sources=_sources(totals, rates),
    )


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


def _dominant_peak(totals: _Totals, rates: Rates) -> float | None:
    """Dense peak of the precision that most FLOPs run in; None where there are no FLOPs."""
    flops: Counter[str] = Counter()
    for line in totals.classes.values():
        flops.update(line.precisions)
    if not flops:
        return None
    return rates.device.peak_flops[rates.precision(max(flops, key=lambda name: flops[name]))].value


def _utilisation(flops: int, seconds: float, peak: float | None, rates: Rates) -> float | None:
    if peak is None or seconds <= 0:
        return None
    share = flops / (seconds * peak)
    if share > 1:
        raise ProfileError(
            f"the step would use {share:.0%} of {rates.device.name}'s peak: the peak or a calibration is wrong",
            hint="peaks are dense rates per device; check the profile with `advisor profiles check`",
        )
    return share


def _sources(totals: _Totals, rates: Rates) -> tuple[str, ...]:
    lines = [f"bandwidth: {rates.bandwidth.source}"]
    for op_class, line in sorted(totals.classes.items()):
        if op_class is OpClass.UNPRICED:
            share = rates.slowest.value
            lines.append(f"{op_class}: bounded by {share:.1%} of the bandwidth ceiling, the slowest class")
            continue
        for precision in sorted(line.precisions) or [""]:
            lines += rates.source_of(op_class, precision)
    lines.append(f"kernel launch on the device: {rates.kernel_launch.source}")
    lines.append(f"operator launch on the host: {rates.host_launch.source}")
    lines.append(f"band: {rates.band[0].source}")
    if rates.device.host_bandwidth is not None and totals.transfer_s:
        lines.append(f"host link, all transfers exposed: {rates.device.host_bandwidth.source}")
    return tuple(dict.fromkeys(lines))


def _rates(device: DeviceProfile) -> Rates:
    if (rates := rates_for(device)) is None:
        raise ProfileError(
            f"{device.name} states no bandwidth or no peak, so its operators can't be timed",
            hint="give memory_bandwidth and [peak] in a profile of your own",
        )
    return rates
