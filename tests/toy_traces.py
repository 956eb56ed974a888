"""Step traces of small models, built by hand: every storage, life and operator is known, so strategies can be checked
to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from advisor.trace.records import (
    BlockChain,
    Category,
    MemoryEvent,
    ModuleRecord,
    OpRecord,
    OptimizerRecord,
    ParameterRecord,
    Phase,
    StepTrace,
    StorageRecord,
    TensorRef,
)
from advisor.units import dtype_bytes

Layer = tuple[str, dict[str, tuple[int, ...]]]  # module, shapes of its parameters by name

GIB = 2**30


def toy_layers(*, num_blocks: int = 4) -> list[Layer]:
    """The model of which torch's own counts are known: vocabulary 64, width 32, linears without bias, norms with."""
    norm = {"weight": (32,), "bias": (32,)}
    block: list[Layer] = [
        ("norm1", norm),
        *((name, {"weight": (32, 32)}) for name in "qkvo"),
        ("norm2", norm),
        ("fc1", {"weight": (128, 32)}),
        ("fc2", {"weight": (32, 128)}),
    ]
    blocks = [(f"blocks.{i}.{module}", shapes) for i in range(num_blocks) for module, shapes in block]
    return [("embed", {"weight": (64, 32)}), *blocks, ("norm", norm), ("head", {"weight": (64, 32)})]


def llama3_layers(*, width: int, ffn: int, num_blocks: int) -> list[Layer]:
    """Llama 3: 8 key and value heads of 128, vocabulary 128256."""
    block = {
        "attention_norm": (width,),
        "wq": (width, width),
        "wk": (1024, width),
        "wv": (1024, width),
        "wo": (width, width),
        "ffn_norm": (width,),
        "w1": (ffn, width),
        "w3": (ffn, width),
        "w2": (width, ffn),
    }
    blocks = [(f"blocks.{i}.{name}", {"weight": shape}) for i in range(num_blocks) for name, shape in block.items()]
    table = {"weight": (128256, width)}
    return [("tok_embeddings", table), *blocks, ("norm", {"weight": (width,)}), ("output", table)]


@dataclass
class _Builder:
    layers: list[Layer]
    num_microbatches: int
    autocast_dtype: str | None
    dtype: str
    frozen: tuple[str, ...]
    activation_bytes: int
    ops: list[OpRecord] = field(default_factory=list)
    storages: list[StorageRecord] = field(default_factory=list)
    events: list[MemoryEvent] = field(default_factory=list)
    parameters: list[ParameterRecord] = field(default_factory=list)
    of: dict[str, list[int]] = field(default_factory=dict)  # module -> its parameters
    states: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(
        self, nbytes: int, category: Category, module: str = "", *, parameter: int = -1, host: bool = False
    ) -> int:
        persistent = category in (Category.PARAMETER, Category.OPTIMIZER_STATE)
        self.storages.append(StorageRecord(nbytes, category, module, persistent, on_host=host, parameter=parameter))
        self.events.append(MemoryEvent(len(self.ops), len(self.storages) - 1, True))
        return len(self.storages) - 1

    def give(self, storage: int) -> None:
        self.events.append(MemoryEvent(len(self.ops), storage, False))

    def op(
        self,
        name: str,
        phase: Phase,
        module: str,
        microbatch: int,
        inputs: Iterable[TensorRef],
        outputs: Iterable[TensorRef],
    ) -> None:
        flops = 1000 if name == "aten.mm.default" else 0
        self.ops.append(OpRecord(name, phase, module, microbatch, tuple(inputs), tuple(outputs), flops))

    def build(self) -> None:
        for module, shapes in self.layers:
            for name, shape in shapes.items():
                index, full_name = len(self.parameters), f"{module}.{name}"
                nbytes = prod(shape) * dtype_bytes(self.dtype)
                storage = self.take(nbytes, Category.PARAMETER, module, parameter=index)
                trained = full_name not in self.frozen
                self.parameters.append(ParameterRecord(full_name, shape, self.dtype, trained, storage))
                self.of.setdefault(module, []).append(index)

    def ref(self, index: int, storage: int | None = None, dtype: str | None = None) -> TensorRef:
        parameter = self.parameters[index]
        return TensorRef(parameter.storage if storage is None else storage, parameter.shape, dtype or parameter.dtype)

    def step(self) -> None:
        gradients: dict[int, int] = {}
        for microbatch in range(min(self.num_microbatches, 2)):
            kept = [self.forward(module, microbatch) for module, _ in self.layers]
            for (module, _), storages in zip(reversed(self.layers), reversed(kept), strict=True):
                read = TensorRef(storages[0], (self.activation_bytes,), "uint8")
                self.op("aten.mm.default", Phase.BACKWARD, module, microbatch, (read,), (read,))
                for index in reversed(self.of.get(module, [])):
                    if self.parameters[index].requires_grad:
                        self.gradient(index, module, microbatch, gradients)
                for storage in storages:
                    self.give(storage)
        self.optimize(gradients)
        for gradient in gradients.values():
            self.give(gradient)

    def forward(self, module: str, microbatch: int) -> tuple[int, ...]:
        """One operator that reads the module's parameters; autocast casts each of them first."""
        casts: list[int] = []
        read: list[TensorRef] = []
        for index in self.of.get(module, []):
            if self.autocast_dtype is None:
                read.append(self.ref(index))
                continue
            nbytes = self.parameters[index].numel * dtype_bytes(self.autocast_dtype)
            casts.append(self.take(nbytes, Category.ACTIVATION, module))
            read.append(self.ref(index, casts[-1], self.autocast_dtype))
            self.op("aten._to_copy.default", Phase.FORWARD, module, microbatch, (self.ref(index),), (read[-1],))
        activation = self.take(self.activation_bytes, Category.ACTIVATION, module)
        made = TensorRef(activation, (self.activation_bytes,), "uint8")
        self.op("aten.mm.default", Phase.FORWARD, module, microbatch, read, (made,))
        return activation, *casts

    def gradient(self, index: int, module: str, microbatch: int, gradients: dict[int, int]) -> None:
        """Made in the autocast dtype and cast where there is autocast; kept the first time, added later."""
        parameter = self.parameters[index]
        made: list[TensorRef] = []
        if self.autocast_dtype is not None:
            low = self.take(parameter.numel * dtype_bytes(self.autocast_dtype), Category.TEMPORARY, module)
            made = [self.ref(index, low, self.autocast_dtype)]
            self.op("aten.mm.default", Phase.BACKWARD, module, microbatch, (), made)
        first = index not in gradients
        category = Category.GRADIENT if first else Category.TEMPORARY
        whole = self.take(parameter.nbytes, category, module, parameter=index if first else -1)
        name = "aten._to_copy.default" if made else "aten.mm.default"
        self.op(name, Phase.BACKWARD, module, microbatch, made, (self.ref(index, whole),))
        for ref in made:
            self.give(ref.storage)
        if first:
            gradients[index] = whole
            return
        total = self.ref(index, gradients[index])
        self.op("aten.add_.Tensor", Phase.BACKWARD, module, microbatch, (total, self.ref(index, whole)), (total,))
        self.give(whole)

    def optimize(self, gradients: dict[int, int]) -> None:
        """AdamW, foreach: two states of the parameter's size, a step count on the host, one temporary each."""
        for index in gradients:
            if index not in self.states:
                nbytes = self.parameters[index].nbytes
                first, second = (self.take(nbytes, Category.OPTIMIZER_STATE, parameter=index) for _ in range(2))
                self.take(4, Category.OPTIMIZER_STATE, parameter=index, host=True)
                self.states[index] = (first, second)
        grads = [self.ref(i, g) for i, g in gradients.items()]
        firsts = [self.ref(i, self.states[i][0]) for i in gradients]
        seconds = [self.ref(i, self.states[i][1]) for i in gradients]
        weights = [self.ref(i) for i in gradients]
        self.op("aten._foreach_lerp_.Scalar", Phase.OPTIMIZER, "", 0, (*firsts, *grads), firsts)
        self.op("aten._foreach_addcmul_.Scalar", Phase.OPTIMIZER, "", 0, (*seconds, *grads), seconds)
        roots = [self.take(self.parameters[i].nbytes, Category.TEMPORARY) for i in gradients]
        made = [self.ref(i, root) for i, root in zip(gradients, roots, strict=True)]
        self.op("aten._foreach_sqrt.default", Phase.OPTIMIZER, "", 0, seconds, made)
        self.op("aten._foreach_addcdiv_.ScalarList", Phase.OPTIMIZER, "", 0, (*weights, *firsts, *made), weights)
        for root in roots:
            self.give(root)


def toy_trace(
    layers: list[Layer] | None = None,
    *,
    num_microbatches: int = 1,
    autocast_dtype: str | None = None,
    dtype: str = "float32",
    frozen: tuple[str, ...] = (),
    activation_bytes: int = 1000,
) -> StepTrace:
    """Two steps of a chain of modules under AdamW. Modules called `NAME.NUMBER...` lie in the block `NAME.NUMBER`."""
    layers = toy_layers() if layers is None else layers
    builder = _Builder(layers, num_microbatches, autocast_dtype, dtype, frozen, activation_bytes)
    builder.build()
    builder.step()
    steady_start = len(builder.ops)
    builder.step()
    blocks = tuple(dict.fromkeys(".".join(module.split(".")[:2]) for module, _ in layers if "." in module))
    return StepTrace(
        ops=tuple(builder.ops),
        steady_start=steady_start,
        storages=tuple(builder.storages),
        events=tuple(builder.events),
        parameters=tuple(builder.parameters),
        modules=(ModuleRecord("", "Model", sum(p.numel for p in builder.parameters)),),
        block_chains=(BlockChain(blocks, "Block"),) if blocks else (),
        optimizer=OptimizerRecord("AdamW", "foreach", 1e-3),
        device_type="cuda",
        autocast_dtype=autocast_dtype,
        micro_batch_size=1,
        num_microbatches=num_microbatches,
        tokens_per_sample=None,
    )


def add_scalar(trace: StepTrace) -> StepTrace:
    """The same with a parameter of no dimension."""
    record = ParameterRecord("temperature", (), "float32", True, trace.parameters[0].storage)
    return replace(trace, parameters=(*trace.parameters, record))


def storage_bytes(trace: StepTrace, *categories: Category) -> int:
    """Device bytes of all storages of these categories, whenever they live."""
    return sum(s.nbytes for s in trace.storages if s.category in categories and not s.on_host)


def live_bytes(trace: StepTrace, position: int) -> Counter[Category]:
    """Device bytes by category when operator `position` runs: with what it takes, before what it gives back."""
    live: Counter[Category] = Counter()
    for event in trace.events:
        if event.position > position:
            break
        storage = trace.storages[event.storage]
        if not storage.on_host:
            live[storage.category] += storage.nbytes if event.is_alloc else -storage.nbytes
    return live


def peak_bytes(trace: StepTrace, *categories: Category, start: int = 0, stop: int | None = None) -> int:
    """Highest sum of live device bytes, of some categories if given, while operators `start` to `stop` run."""
    now = peak = 0
    for event in trace.events:
        storage = trace.storages[event.storage]
        if not storage.on_host and (not categories or storage.category in categories):
            now += storage.nbytes if event.is_alloc else -storage.nbytes
        if start <= event.position and (stop is None or event.position <= stop):
            peak = max(peak, now)
    return peak


def collective_counts(trace: StepTrace) -> dict[str, tuple[int, int]]:
    """Number and payload bytes of the collectives of one optimizer step, by kind."""
    number: Counter[str] = Counter()
    payload: Counter[str] = Counter()
    for record in trace.collectives:
        repeats = trace.num_microbatches - 1 if record.microbatch else 1
        number[record.kind] += repeats
        payload[record.kind] += repeats * record.payload_bytes
    return {kind: (number[kind], payload[kind]) for kind in number}


def assert_consistent(trace: StepTrace) -> None:
    """Events in order, each storage taken once and given back at most once after that, positions inside the steps."""
    taken: set[int] = set()
    given: set[int] = set()
    position = 0
    for event in trace.events:
        assert event.position >= position
        position = event.position
        assert (event.storage in taken) is not event.is_alloc
        assert event.storage not in given
        (taken if event.is_alloc else given).add(event.storage)
    assert position <= len(trace.ops)
    assert 0 < trace.steady_start < len(trace.ops)
    kept = {storage for storage in taken - given if not trace.storages[storage].persistent}
    assert all(trace.storages[storage].category is Category.INPUT for storage in kept)
    for record in trace.collectives:
        assert trace.steady_start <= record.issue_position <= record.wait_position <= len(trace.ops)
