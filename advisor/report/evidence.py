"""Section 10: what the numbers stand on."""

from __future__ import annotations

from advisor.cost.estimate import Provenance
from advisor.hardware.profile import ClusterProfile, DeviceProfile, Sourced
from advisor.measure.result import Measurement, Outcome
from advisor.report import phrases
from advisor.report.blocks import Block, Cell, Column, Notes, Paragraph, Table
from advisor.report.model import Report
from advisor.search.plan import Candidate
from advisor.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds, format_usd_per_hour

_PREDICTED, _MEASURED, _ASSUMED = Provenance.PREDICTED, Provenance.MEASURED, Provenance.ASSUMED
_HASH_DIGITS = 16  # enough to tell two inputs apart by eye; the stored report has all of them

_LABELS = (
    "Measured: run on this machine. Predicted: computed from a trace of one step and the rates below. "
    "Assumed: stated by you or by the profile, with its source."
)


def blocks(report: Report) -> tuple[Block, ...]:
    result: list[Block] = [Paragraph(_LABELS), Paragraph(_known_error(report))]
    if report.verdict is not None and any(c.measurement for c in _measured(report)):
        result.append(measured_beside_predicted(report))
    if report.description.guesses:
        result.append(_guesses(report))
    if report.settings:
        result.append(_settings(report))
    result.extend(_hardware(report))
    if report.evidence.rates:
        result.append(Notes(report.evidence.rates, title="Rates and constants"))
    if report.evidence.notes:
        result.append(Notes(report.evidence.notes, title="Assumed, redirected or not traced"))
    result.append(_versions(report))
    return tuple(result)


def _known_error(report: Report) -> str:
    if report.evidence.known_error:
        return f"Known prediction error (measured): {report.evidence.known_error}"
    return (
        "Known prediction error: none on record for this class of model on this class of device; the bands are those "
        "of the cost model."
    )


def _measured(report: Report) -> tuple[Candidate, ...]:
    """Candidates that may have been run, each plan once."""
    found = {c.plan: c for c in (report.baseline, report.single, report.distributed) if c is not None and c.measurement}
    return tuple(found.values())


def measured_beside_predicted(report: Report) -> Table:
    columns = (
        Column("Run"),
        Column("Step, predicted", "right"),
        Column("Step, measured", "right"),
        Column("Ratio", "right"),
        Column("Peak, predicted", "right"),
        Column("Peak, measured", "right"),
        Column("Ratio", "right"),
        Column("How", note=True),
    )
    rows = tuple(_run(candidate, report) for candidate in _measured(report))
    return Table(
        columns=columns,
        rows=rows,
        caption="Ratio is predicted over measured. Peaks are live tensors where the device counts them.",
    )


def _run(candidate: Candidate, report: Report) -> tuple[Cell, ...]:
    measurement, time = candidate.measurement, candidate.estimate.time
    assert measurement is not None
    peak = measurement.peak_allocated_bytes
    predicted_peak = candidate.estimate.memory.allocated_peak_bytes
    name = "as it is" if candidate.plan == report.baseline.plan else "recommended"
    return (
        Cell(name),
        Cell(phrases.step_time(time), _PREDICTED),
        Cell(phrases.measured_step(measurement), _MEASURED),
        Cell(phrases.times(phrases.ratio(time.step_s if time else None, measurement.step_time_s)), _PREDICTED),
        Cell(format_bytes(predicted_peak), _PREDICTED),
        Cell(phrases.NONE if peak is None else format_bytes(peak), _MEASURED),
        Cell(phrases.times(phrases.ratio(predicted_peak, peak)), _PREDICTED),
        Cell(_how(measurement)),
    )


def _how(measurement: Measurement) -> str:
    where = f"on {measurement.device}" if measurement.device else "here"
    if measurement.outcome is not Outcome.COMPLETED:
        return f"{where}: {measurement.outcome}{f', {measurement.reason}' if measurement.reason else ''}"
    low, high = measurement.step_time_low_s, measurement.step_time_high_s
    spread = "" if low is None or high is None else f", 10 to 90 % {format_seconds(low)} to {format_seconds(high)}"
    return f"{where}, median of {measurement.num_steps} steps{spread}"


def _guesses(report: Report) -> Table:
    columns = (Column("Guessed"), Column("Chosen"), Column("Override"), Column("Why", note=True))
    rows = tuple(
        (Cell(guess.what), Cell(guess.chosen), Cell(guess.flag), Cell(guess.why))
        for guess in report.description.guesses
    )
    return Table(columns=columns, rows=rows)


def _settings(report: Report) -> Table:
    columns = (Column("Setting"), Column("Value"), Column("From"))
    rows = tuple((Cell(s.name), Cell(s.value, _ASSUMED), Cell(s.origin)) for s in report.settings)
    return Table(columns=columns, rows=rows, caption="Values are assumed: as stated.")


def _hardware(report: Report) -> tuple[Block, ...]:
    """Facts with the number of their source, then the sources."""
    facts = _device_facts(report.device) + (() if report.cluster is None else _cluster_facts(report.cluster))
    sources = list(dict.fromkeys(_source(fact) for _, fact, _ in facts))
    columns = (Column("Hardware"), Column("Value", "right"), Column("Source"))
    rows = tuple(
        (Cell(name), Cell(text, _ASSUMED), Cell(f"({sources.index(_source(fact)) + 1})")) for name, fact, text in facts
    )
    caption = "Values are assumed: datasheet or published figures, dense peaks, per device and direction."
    table = Table(columns=columns, rows=rows, caption=caption)
    return (table, Notes(tuple(f"({number}) {source}" for number, source in enumerate(sources, 1)), title="Sources"))


def _source(fact: Sourced) -> str:
    return f"{fact.source} ({fact.note})" if fact.note else fact.source


_Fact = tuple[str, Sourced, str]


def _device_facts(device: DeviceProfile) -> tuple[_Fact, ...]:
    known = [
        ("memory torch reports", device.memory_capacity, format_bytes),
        ("nominal memory", device.nominal_memory, lambda size: f"{size / 1e9:g} GB"),
        ("memory bandwidth", device.memory_bandwidth, format_bytes_per_s),
        *((f"peak {precision}", rate, format_flops_per_s) for precision, rate in sorted(device.peak_flops.items())),
        ("link between devices", device.link_bandwidth, format_bytes_per_s),
        ("host link", device.host_bandwidth, format_bytes_per_s),
        ("price", device.price_usd_per_hour, format_usd_per_hour),
    ]
    return tuple((name, fact, form(fact.value)) for name, fact, form in known if fact is not None)


def _cluster_facts(cluster: ClusterProfile) -> tuple[_Fact, ...]:
    known = [
        (f"inside a node, {cluster.intra_node_link}", cluster.intra_node_bandwidth, format_bytes_per_s),
        (f"between nodes, {cluster.inter_node_network}", cluster.inter_node_bandwidth, format_bytes_per_s),
        (f"price of a node of {cluster.devices_per_node}", cluster.price_usd_per_hour, format_usd_per_hour),
    ]
    return tuple((name, fact, form(fact.value)) for name, fact, form in known if fact is not None)


def _versions(report: Report) -> Paragraph:
    versions = {"advisor": report.evidence.advisor_version, **report.description.versions}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Paragraph(f"Versions: {listed}. Input hash: {report.evidence.input_hash[:_HASH_DIGITS]}.")
