"""What every parallel strategy promises, whoever wrote it."""

import ast
from pathlib import Path

import pytest
from toy_traces import assert_consistent, toy_trace

from advisor.discovery import discover
from advisor.hardware.mesh import AXES, Mesh
from advisor.parallel.base import Strategy

STRATEGIES = discover("advisor.parallel", "STRATEGY", Strategy)
TESTS = Path(__file__).parent.parent / "unit" / "parallel"


def meshes(strategy):
    """Two ranks, then four, along each axis the strategy uses."""
    return [Mesh(**dict.fromkeys(strategy.axes, degree)) for degree in (2, 4)]


@pytest.fixture(params=STRATEGIES.values(), ids=STRATEGIES)
def strategy(request):
    return request.param


def test_has_a_test_file(strategy):
    assert (TESTS / f"test_{strategy.name}.py").is_file()


def test_uses_known_axes_and_has_a_title(strategy):
    assert set(strategy.axes) <= set(AXES)
    assert strategy.title
    assert sum(other.simplicity == strategy.simplicity for other in STRATEGIES.values()) == 1


def test_a_mesh_of_one_is_the_identity(strategy):
    trace = toy_trace()
    assert strategy.shard(trace, Mesh()) is trace


@pytest.mark.parametrize("num_microbatches", [1, 2, 5])
@pytest.mark.parametrize("autocast_dtype", [None, "bfloat16"])
def test_the_new_trace_is_sound_and_the_old_one_untouched(strategy, num_microbatches, autocast_dtype):
    trace = toy_trace(num_microbatches=num_microbatches, autocast_dtype=autocast_dtype)
    for mesh in meshes(strategy):
        assert strategy.illegal(trace, mesh) is None
        for reshard in (True, False):
            new = strategy.shard(trace, mesh, reshard_after_forward=reshard)
            assert_consistent(new)
            assert new.collectives
            assert {c.axis for c in new.collectives} <= set(strategy.axes)
            assert new.flops_per_step() == trace.flops_per_step()
            assert new.parameters == trace.parameters
    assert trace == toy_trace(num_microbatches=num_microbatches, autocast_dtype=autocast_dtype)


def test_another_axis_is_refused(strategy):
    other = next(axis for axis in AXES if axis not in strategy.axes)
    mesh = Mesh(**dict.fromkeys((*strategy.axes, other), 2))
    assert other in str(strategy.illegal(toy_trace(), mesh))


@pytest.mark.parametrize("reshard", [True, False])
def test_snippet_is_python(strategy, reshard):
    for mesh in meshes(strategy):
        ast.parse(strategy.snippet(mesh, reshard_after_forward=reshard))
