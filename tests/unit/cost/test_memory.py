from __future__ import annotations

from dataclasses import replace

import pytest
from fabricated_traces import TraceBuilder, linear_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.estimate import FitVerdict
from advisor.cost.memory import estimate_memory
from advisor.errors import ProfileError
from advisor.hardware.catalog import device
from advisor.trace.records import BlockChain, Category, CollectiveRecord, Phase

RTX_3090 = device("rtx-3090")
MIB = 2**20
CUBLAS = 8_519_680


def test_allocated_peak_by_hand() -> None:
    # width 1024, float16: a weight is 2 MiB; batch 512: an activation is 1 MiB
    found = estimate_memory(linear_chain(batch=512, width=1024, layers=3), RTX_3090)
    weights, states, grads, workspaces = 3 * 2 * MIB, 3 * 2 * MIB, 3 * 2 * MIB, 2 * CUBLAS
    # at the last layer of backward: every gradient; the input and output of the layer and the gradients of both
    assert found.allocated_peak_bytes == weights + states + grads + workspaces + 4 * MIB
    assert found.peak.phase is Phase.BACKWARD
    assert found.peak.module == "layers.0"
    assert not found.peak.first_step
    assert dict(found.peak.by_category) == {
        Category.PARAMETER: weights,
        Category.OPTIMIZER_STATE: states,
        Category.GRADIENT: grads,
        Category.WORKSPACE: workspaces,
        Category.TEMPORARY: 2 * MIB,
        Category.ACTIVATION: MIB,
        Category.INPUT: MIB,
    }


def test_required_is_the_sum_of_its_parts() -> None:
    found = estimate_memory(linear_chain(), RTX_3090)
    parts = found.reserved_peak_bytes - found.releasable_bytes + found.context_bytes
    assert found.required_bytes == parts + found.workspace_bytes + found.communication_bytes
    assert found.low_bytes <= found.required_bytes <= found.high_bytes
    assert found.allocated_peak_bytes <= found.reserved_peak_bytes
    assert found.context_bytes == 1644 * MIB


@pytest.mark.parametrize(
    "name, nbytes",
    [
        ("rtx-3090", 2 * 8_519_680),
        ("h100-sxm5-80gb", 2 * 32 * MIB),
        ("b200-sxm", 2 * 32 * MIB),
        ("mi300x", 2 * (128 + 76) * MIB),
        ("mi250x-gcd", 2 * (32 + 76) * MIB),
    ],
)
def test_blas_takes_a_workspace_in_each_thread(name: str, nbytes: int) -> None:
    found = estimate_memory(linear_chain(), device(name))
    assert dict(found.peak.by_category)[Category.WORKSPACE] == nbytes


def test_a_step_without_matmul_takes_none() -> None:
    builder = TraceBuilder()
    data = builder.tensor((4,), "float32", Category.PARAMETER)
    builder.op("aten.relu_.default", (data,), (data,))
    assert estimate_memory(builder.build(), RTX_3090).allocated_peak_bytes == 512


def test_verdict_by_band() -> None:
    trace = linear_chain()
    plenty = estimate_memory(trace, RTX_3090)
    at = [
        estimate_memory(trace, RTX_3090, usable_bytes=usable)
        for usable in (plenty.high_bytes, plenty.high_bytes - 1, plenty.low_bytes, plenty.low_bytes - 1)
    ]
    assert [found.verdict for found in at] == [
        FitVerdict.FITS,
        FitVerdict.UNDETERMINED,
        FitVerdict.UNDETERMINED,
        FitVerdict.DOES_NOT_FIT,
    ]
    assert [found.fits for found in at] == [True, True, False, False]
    assert estimate_memory(trace, RTX_3090, usable_bytes=plenty.required_bytes).fits  # inside the band
    assert not estimate_memory(trace, RTX_3090, usable_bytes=plenty.required_bytes - 1).fits


def test_on_a_full_device_unused_segments_are_given_back() -> None:
    builder = TraceBuilder()
    first = builder.tensor((12 * MIB,), "uint8")
    builder.free(first)
    second = builder.tensor((14 * MIB,), "uint8")
    builder.op("aten.relu_.default", (second,), (second,))
    trace = builder.build()
    found = estimate_memory(trace, RTX_3090)
    assert (found.reserved_peak_bytes, found.releasable_bytes) == (26 * MIB, 12 * MIB)
    tight = estimate_memory(trace, RTX_3090, usable_bytes=found.context_bytes + 20 * MIB)
    assert (tight.reserved_peak_bytes, tight.releasable_bytes) == (14 * MIB, 0)
    assert tight.required_bytes == found.required_bytes


def test_a_step_that_only_runs_at_first_does_not_fit() -> None:
    """The steady step of test_later_steps_cut_up_the_segments_that_the_first_left, on a device of 60 MiB."""
    builder = TraceBuilder()
    large, larger = builder.tensor((20 * MIB,), "uint8"), builder.tensor((30 * MIB,), "uint8")
    builder.free(large)
    builder.tensor((6 * MIB,), "uint8")
    builder.free(larger)
    builder.op("aten.relu_.default", (larger,), (larger,))
    trace = builder.build()
    plenty = estimate_memory(trace, RTX_3090)
    assert (plenty.allocated_peak_bytes, plenty.required_bytes - plenty.context_bytes) == (50 * MIB, 50 * MIB)
    tight = estimate_memory(trace, RTX_3090, usable_bytes=plenty.context_bytes + 58 * MIB)
    assert not tight.fits
    assert (tight.required_bytes - tight.context_bytes, tight.releasable_bytes) == (80 * MIB, 0)
    roomy = estimate_memory(trace, RTX_3090, usable_bytes=plenty.context_bytes + 80 * MIB)
    assert roomy.fits


def test_cpu_counts_bytes_as_asked_for_and_has_no_context() -> None:
    builder = TraceBuilder()
    data = builder.tensor((100,), "uint8", Category.PARAMETER)
    builder.op("aten.relu_.default", (data,), (data,))
    host = replace(RTX_3090, name="host", device_type="cpu", compute_capability=None)
    found = estimate_memory(builder.build(), host)
    assert (found.allocated_peak_bytes, found.reserved_peak_bytes, found.required_bytes) == (100, 100, 100)


def test_offloaded_storages_are_on_the_host() -> None:
    builder = TraceBuilder()
    data = builder.tensor((1000,), "uint8", Category.PARAMETER)
    saved = builder.tensor((5000,), "uint8", Category.ACTIVATION, on_host=True)
    builder.op("aten.relu_.default", (data,), (data,))
    builder.free(saved)
    found = estimate_memory(builder.build(), RTX_3090)
    assert (found.allocated_peak_bytes, found.host_bytes) == (1024, 5000)


def test_communicators_take_buffers_for_each_axis() -> None:
    def collective(axis: str) -> CollectiveRecord:
        return CollectiveRecord("all_reduce", 8, axis, 0, 1, "comm", 0)

    one = replace(linear_chain(), collectives=(collective("dp_replicate"),) * 3)
    two = replace(one, collectives=(collective("dp_replicate"), collective("dp_shard")))
    found = [estimate_memory(trace, RTX_3090).communication_bytes for trace in (linear_chain(), one, two)]
    assert found == [0, 616 * 10**6, 2 * 616 * 10**6]
    assert estimate_memory(one, device("mi300x")).communication_bytes == 2**30


def test_the_first_step_has_a_peak_of_its_own() -> None:
    found = estimate_memory(linear_chain(layers=4), RTX_3090)
    assert found.first_step_peak.first_step
    assert found.first_step_peak.allocated_bytes <= found.allocated_peak_bytes


def test_the_next_peak_is_elsewhere() -> None:
    builder = TraceBuilder()
    for module, phase, nbytes in (
        ("blocks.0", Phase.FORWARD, 7000),
        ("blocks.1", Phase.FORWARD, 9000),
        ("head", Phase.FORWARD, 6000),
        ("", Phase.OPTIMIZER, 5000),
    ):
        data = builder.tensor((nbytes,), "uint8")
        builder.op("aten.relu.default", (data,), (data,), module=module, phase=phase)
        builder.free(data)
    chain = BlockChain(("blocks.0", "blocks.1"), "Block")
    found = estimate_memory(builder.build(block_chains=(chain,)), RTX_3090)
    assert found.peak.module == "blocks.1"
    assert found.next_peak is not None  # the blocks of a chain count as one place
    assert (found.next_peak.module, found.next_peak.allocated_bytes) == ("head", 6144)


def test_categories_add_up_to_the_peak() -> None:
    found = estimate_memory(linear_chain(batch=700, width=1500), RTX_3090)
    for peak in (found.peak, found.first_step_peak):
        assert sum(nbytes for _, nbytes in peak.by_category) == peak.allocated_bytes


def test_activations_by_module() -> None:
    builder = TraceBuilder()
    for name, size in (("a", 2048), ("b", 4096)):
        builder.tensor((size,), "uint8", Category.ACTIVATION, module=name)
    builder.tensor((8192,), "uint8", Category.TEMPORARY, module="c")
    found = estimate_memory(builder.build(), RTX_3090)
    assert found.by_module == (("b", 4096), ("a", 2048))


def test_a_device_without_a_memory_size_is_an_error() -> None:
    bare = replace(RTX_3090, memory_capacity=None, nominal_memory=None)
    with pytest.raises(ProfileError, match="no memory size"):
        estimate_memory(linear_chain(), bare)
    assert estimate_memory(linear_chain(), bare, usable_bytes=2**34).usable_bytes == 2**34


def test_an_unknown_generation_gets_the_widest_range_published() -> None:
    found = estimate_memory(linear_chain(), device("h100-sxm5-80gb"))
    assert any(source.startswith("context: widest range published") for source in found.sources)
    assert found.high_bytes - found.low_bytes > 10**9


@settings(max_examples=30)
@given(st.integers(1, 512), st.integers(1, 512))
def test_a_bigger_batch_never_takes_less(one: int, other: int) -> None:
    small, large = (estimate_memory(linear_chain(batch=b, width=128), RTX_3090) for b in sorted((one, other)))
    assert small.allocated_peak_bytes <= large.allocated_peak_bytes


@settings(max_examples=30)
@given(st.integers(1, 512), st.booleans())
def test_allocated_fits_in_reserved(batch: int, expandable: bool) -> None:
    found = estimate_memory(linear_chain(batch=batch, width=256), RTX_3090, expandable_segments=expandable)
    assert found.allocated_peak_bytes <= found.reserved_peak_bytes
    assert 0 <= found.releasable_bytes < found.reserved_peak_bytes
