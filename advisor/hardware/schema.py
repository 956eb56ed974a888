"""What a profile file may say: TOML with units in the values and a source for each number.

A file that breaks a rule is refused as a whole, with every fault named. The rules in words: profiles/README.md.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from advisor import units
from advisor.errors import ProfileError, UsageError
from advisor.hardware.profile import ClusterProfile, DeviceProfile, Precision, Sourced

F = TypeVar("F", bound="ProfileFile")
Pair = Annotated[tuple[str, str], Field(strict=False)]

# Dense 16-bit tensor FLOPs per clock and multiprocessor by compute capability, from NVIDIA's architecture white papers
# (Volta, Turing, A100, GA102, Ada, Hopper, Blackwell); each agrees with peak and rated clock of the profiles shipped.
_TENSOR_FLOPS_PER_CLOCK = {
    "7.0": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
    "12.0": 1024,
}
_HIGHEST_CLOCK_HZ = 2.7e9  # no profile shipped implies more than 2.52 GHz; the sparse rate of the slowest one, 2.82 GHz
_LARGEST_STEP = 2.2  # halving the width doubles the dense tensor rate on every profile shipped; 10 % for rounding


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(_Strict):
    """Where numbers are from. Without an address the note must say why there is none."""

    title: str = Field(min_length=1)
    address: str | list[str] = ""  # URL, `github:owner/repo@commit path`, or the name and version of a package
    date: str = Field(default="", pattern=r"^(\d{4}(-\d{2}){0,2})?$")
    note: str = ""

    def text(self) -> str:
        """The source as a reader wants it: "title (address), date"; the note where there is no address."""
        addresses = [self.address] if isinstance(self.address, str) else self.address
        where = "; ".join(filter(None, addresses)) or self.note
        return self.title + (f" ({where})" if where else "") + (f", {self.date}" if self.date else "")


class Quantity(_Strict):
    """`{ value = "80 GiB", source = "torch-total" }`: a value with its unit and the key of its source."""

    example: ClassVar[str]

    value: str
    source: str
    note: str = ""

    @staticmethod
    def parse(text: str) -> float:
        raise NotImplementedError

    @field_validator("value")
    @classmethod
    def _has_its_unit(cls, value: str) -> str:
        try:
            number = cls.parse(value)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        if number <= 0:
            raise ValueError(f"{value!r} is not above zero; leave the key out where a value is not known")
        return value

    @property
    def number(self) -> float:
        """In the SI base unit."""
        return self.parse(self.value)

    def sourced(self, sources: dict[str, Source]) -> Sourced:
        return Sourced(value=self.number, source=sources[self.source].text(), note=self.note)


class Memory(Quantity):
    example = "80 GiB"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_bytes(text)


class Bandwidth(Quantity):
    example = "3.35 TB/s"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_bytes_per_s(text)


class FlopRate(Quantity):
    example = "989 TFLOP/s"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_flops_per_s(text)


class Count(Quantity):
    example = "132"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_count(text)


class Price(Quantity):
    example = "2.49 USD/h"

    @staticmethod
    def parse(text: str) -> float:
        return units.parse_usd_per_hour(text)


class ProfileFile(_Strict):
    """What every profile file has: sources, and numbers that name one of them."""

    sources: dict[str, Source]

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Each number in the file with the path of its field."""
        for field in type(self).model_fields:
            value = getattr(self, field)
            if isinstance(value, Quantity):
                yield field, value
            elif isinstance(value, dict):
                yield from ((f"{field}.{key}", item) for key, item in value.items() if isinstance(item, Quantity))

    def faults(self) -> Iterator[Fault]:
        """Rules that tie several fields together."""
        known = ", ".join(self.sources) or "none"
        for field, quantity in self.quantities():
            if quantity.source not in self.sources:
                yield Fault(f"{field}.source", f"{quantity.source!r} is no entry of [sources]; entries: {known}")
        for key, source in self.sources.items():
            if not source.address and not source.note:
                yield Fault(f"sources.{key}", "has no address; give one, or say in a note why there is none")


class DeviceFile(ProfileFile):
    """profiles/devices/NAME.toml. Dense peaks, per device; bandwidth per device and direction."""

    title: str
    vendor: str
    architecture: str
    device_type: Literal["cuda", "rocm", "mps", "cpu", "xpu", "hpu", "tpu"]
    reported_names: list[str] = []
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d$")
    native_bfloat16: bool | None = None
    num_multiprocessors: Count | None = None
    memory_capacity: Memory | None = None
    nominal_memory: Memory | None = None
    memory_bandwidth: Bandwidth | None = None
    peak: dict[Precision, FlopRate] = {}
    l2_cache: Memory | None = None
    link_type: str = ""
    link_bandwidth: Bandwidth | None = None
    host_bandwidth: Bandwidth | None = None
    price: Price | None = None
    notes: list[str] = []

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from _sparse_looking(self)
        if self.device_type == "cuda" and self.compute_capability is None:
            yield Fault("compute_capability", 'is missing; write the one of this device, such as "8.0"')
        if self.memory_capacity is None and self.nominal_memory is None and self.memory_bandwidth is None:
            yield Fault("memory_capacity", "nothing is said about memory; give at least one of the memory keys")

    def profile(self, name: str) -> DeviceProfile:
        def fact(quantity: Quantity | None) -> Sourced | None:
            return None if quantity is None else quantity.sourced(self.sources)

        major, _, minor = (self.compute_capability or "").partition(".")
        return DeviceProfile(
            name=name,
            title=self.title,
            vendor=self.vendor,
            architecture=self.architecture,
            device_type=self.device_type,
            reported_names=tuple(self.reported_names),
            compute_capability=(int(major), int(minor)) if major else None,
            memory_capacity=fact(self.memory_capacity),
            nominal_memory=fact(self.nominal_memory),
            memory_bandwidth=fact(self.memory_bandwidth),
            peak_flops={precision: rate.sourced(self.sources) for precision, rate in self.peak.items()},
            l2_bytes=fact(self.l2_cache),
            num_multiprocessors=None if self.num_multiprocessors is None else int(self.num_multiprocessors.number),
            link_bandwidth=fact(self.link_bandwidth),
            link_type=self.link_type,
            host_bandwidth=fact(self.host_bandwidth),
            native_bfloat16=self.native_bfloat16,
            price_usd_per_hour=fact(self.price),
            notes=tuple(self.notes),
        )


class ClusterFile(ProfileFile):
    """profiles/clusters/NAME.toml. Inside a node per device and direction; between nodes per node and direction."""

    title: str
    device: str
    devices_per_node: int = Field(ge=1)
    intra_node_link: str = ""
    intra_node_bandwidth: Bandwidth | None = None
    inter_node_network: str = ""
    inter_node_bandwidth: Bandwidth | None = None
    host_memory: Memory | None = None
    price: Price | None = None
    notes: list[str] = []

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.devices_per_node > 1 and self.intra_node_bandwidth is None:
            yield Fault("intra_node_bandwidth", "is missing; a node of several devices has a link between them")

    def profile(self, name: str) -> ClusterProfile:
        def fact(quantity: Quantity | None) -> Sourced | None:
            return None if quantity is None else quantity.sourced(self.sources)

        return ClusterProfile(
            name=name,
            title=self.title,
            device=self.device,
            devices_per_node=self.devices_per_node,
            intra_node_bandwidth=fact(self.intra_node_bandwidth),
            intra_node_link=self.intra_node_link,
            inter_node_bandwidth=fact(self.inter_node_bandwidth),
            inter_node_network=self.inter_node_network,
            host_memory=fact(self.host_memory),
            price_usd_per_hour=fact(self.price),
            notes=tuple(self.notes),
        )


class CollectiveEntry(_Strict):
    """One measured table: `points` are pairs of message size and bus bandwidth, as nccl-tests defines both."""

    system: str
    devices: list[str] = Field(min_length=1)
    link_type: str
    network: str = ""
    inter_node_bandwidth: Bandwidth | None = None  # per node and direction
    num_ranks: int = Field(ge=2)
    num_nodes: int = Field(ge=1)
    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
    algorithm: str = ""
    points: list[Pair] = Field(min_length=1)
    source: str
    note: str = ""

    @field_validator("points")
    @classmethod
    def _have_their_units(cls, points: list[tuple[str, str]]) -> list[tuple[str, str]]:
        try:
            sizes = [(units.parse_bytes(size), units.parse_bytes_per_s(rate))[0] for size, rate in points]
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        if sizes != sorted(set(sizes)):
            raise ValueError("message sizes are not in rising order")
        return points


class CollectiveFile(ProfileFile):
    """profiles/collectives/NAME.toml: the measured tables of one kind of hardware."""

    tables: list[CollectiveEntry] = Field(min_length=1)

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        for index, table in enumerate(self.tables):
            named = [table.source] + ([table.inter_node_bandwidth.source] if table.inter_node_bandwidth else [])
            for source in named:
                if source not in self.sources:
                    yield Fault(f"tables.{index}.source", f"{source!r} is no entry of [sources]")
            if table.num_ranks % table.num_nodes:
                yield Fault(f"tables.{index}.num_ranks", f"{table.num_ranks} is no multiple of {table.num_nodes} nodes")


class UnsupportedEntry(_Strict):
    title: str
    reason: str


class UnsupportedFile(ProfileFile):
    """profiles/unsupported.toml: devices people ask for, of which too little is published to say anything."""

    sources: dict[str, Source] = {}
    devices: dict[str, UnsupportedEntry]


@dataclass(frozen=True, slots=True)
class Fault:
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


def read(path: Path, kind: type[F]) -> F:
    """The file at `path`, or a `ProfileError` with all that is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: can't be read: {error}", hint="a profile is a TOML file in UTF-8") from error
    try:
        file = kind.model_validate(content)
    except ValidationError as error:
        faults = [_fault(detail, kind) for detail in error.errors(include_url=False)]
    else:
        faults = list(file.faults())
        if not faults:
            return file
    lines = "".join(f"\n  {fault}" for fault in faults)
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    raise ProfileError(f"{path}: {count}{lines}", hint="the rules of a profile are in profiles/README.md")


def kind_of(path: Path) -> type[ProfileFile]:
    """Which schema a file follows, told by a key only that kind has."""
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8")).keys()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return DeviceFile  # reading it says what is wrong
    if "devices_per_node" in keys or "inter_node_bandwidth" in keys:
        return ClusterFile
    if "tables" in keys:
        return CollectiveFile
    return UnsupportedFile if "devices" in keys else DeviceFile


def _fault(detail: ErrorDetails, kind: type[ProfileFile]) -> Fault:
    """One of pydantic's errors in the words of a profile's author."""
    loc = [str(part) for part in detail["loc"] if part != "[key]"]
    found = detail["input"]
    context = detail.get("ctx", {})
    quantity = {known.__name__: known for known in Quantity.__subclasses__()}.get(context.get("class_name", ""))
    if detail["type"] == "missing":
        problem = f"is missing; expected {_expected(loc, kind)}"
    elif detail["type"] == "extra_forbidden":
        known = list(kind.model_fields) if len(loc) == 1 else ["value", "source", "note"]
        close = difflib.get_close_matches(loc[-1], known, n=1)
        problem = f"is no key of a profile; did you mean {close[0]!r}?" if close else "is no key of a profile"
    elif detail["type"] == "value_error":
        problem = str(context["error"])
    elif quantity is not None:
        problem = f'found {found!r}; expected {{ value = "{quantity.example}", source = "..." }}'
    elif isinstance(found, int | float) and not isinstance(found, bool):
        problem = f"found the bare number {found}; expected a string with its unit"
    else:
        problem = f"found {found!r}; expected {detail['msg'][:1].lower()}{detail['msg'][1:]}"
        problem = problem.replace("expected input should be", "expected").replace(
            "expected string should", "expected to"
        )
    return Fault(".".join(loc), problem)


def _expected(loc: list[str], kind: type[ProfileFile]) -> str:
    """What a key that is missing looks like."""
    field = loc[-1]
    if field == "source":
        return 'source = "...", a name among [sources]'
    annotation = kind.model_fields[field].annotation if field in kind.model_fields else str
    shapes = {int: f"{field} = 8", str: f'{field} = "..."'}
    return shapes.get(annotation, f"a table [{field}.NAME]" if field == "sources" else f"{field} = ...")  # type: ignore[arg-type]


def _sparse_looking(file: DeviceFile) -> Iterator[Fault]:
    """Peaks that only add up with structured sparsity: datasheets of Ampere and later print that rate."""
    rates = {str(precision): rate.number for precision, rate in file.peak.items()}
    half = max(rates.get("float16", 0.0), rates.get("bfloat16", 0.0))
    advice = "write the dense rate, half the one printed 'with sparsity'"
    if half and rates.get("float8", 0.0) > _LARGEST_STEP * half:
        yield Fault("peak.float8", f"is {rates['float8'] / half:.2g} times the 16-bit peak: looks sparse; {advice}")
    if file.vendor == "NVIDIA" and "tf32" in rates and half > _LARGEST_STEP * rates["tf32"]:
        yield Fault("peak", f"16-bit is {half / rates['tf32']:.2g} times tf32: looks sparse; {advice}")
    flops_per_clock = _TENSOR_FLOPS_PER_CLOCK.get(file.compute_capability or "")
    if flops_per_clock and file.num_multiprocessors:
        clock = half / (flops_per_clock * file.num_multiprocessors.number)
        if clock > _HIGHEST_CLOCK_HZ:
            yield Fault("peak", f"the 16-bit peak needs a clock of {clock / 1e9:.2f} GHz: looks sparse; {advice}")
