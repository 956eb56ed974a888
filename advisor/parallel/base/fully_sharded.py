"""`fully_shard` (FSDP2) as a rewrite of a trace, and what the strategies that call it share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from advisor.hardware.mesh import Mesh
from advisor.parallel.base.hooks import FullyShardPolicy, Hooks
from advisor.parallel.base.strategy import Strategy, data_parallel_notes, why_not_data_parallel
from advisor.trace.edit import TraceEditor
from advisor.trace.records import Phase, StepTrace
from advisor.trace.shard import shard_states
from advisor.trace.units import fsdp_units


class FullySharded(Strategy):
    """What every way to call `fully_shard` shares; a strategy says its policy and what its training loop switches."""

    policy: FullyShardPolicy
    loop: tuple[str, ...] = ()  # calls before each backward

    @property
    def reshards(self) -> bool:
        return self.policy.reshard_after_forward

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        return why_not_fully_shard(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        if mesh.data_parallel_size == 1:
            return trace
        reshard = self.reshards and reshard_after_forward
        return fully_shard(trace, mesh, replace(self.policy, reshard_after_forward=reshard))

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True, blocks: str = "blocks") -> str:
        reshard = self.reshards and reshard_after_forward
        return fully_shard_snippet(mesh, self.axes, reshard=reshard, blocks=blocks, loop=self.loop)


def why_not_fully_shard(trace: StepTrace, mesh: Mesh, axes: tuple[str, ...]) -> str | None:
    """Reasons that hold for each strategy that calls `fully_shard`."""
    if (reason := why_not_data_parallel(trace, mesh, axes)) is not None:
        return reason
    if scalar := next((p.name for p in trace.parameters if not p.shape), None):
        return f"fully_shard doesn't support scalar parameters: make {scalar} a 1D tensor with one element"
    for unit in fsdp_units(trace):
        dtypes = {trace.parameters[i].dtype for i in unit.parameters if trace.parameters[i].requires_grad}
        if len(dtypes) > 1:
            where = f"block {unit.name}" if unit.name else "the root"
            found = ", ".join(sorted(dtypes))
            return f"fully_shard expects one dtype for the trained parameters of {where}, found {found}"
    for op in trace.steady_ops():
        if op.phase is Phase.OPTIMIZER and op.flops and op.inputs[0].shape[-1:] != (1,):
            return f"the optimizer multiplies whole matrices ({op.name}), and a rank only holds a part of each"
    return None


def fully_shard(trace: StepTrace, mesh: Mesh, policy: FullyShardPolicy) -> StepTrace:
    """The step of the rank with the largest shards, over `mesh.dp_shard`, replicated over `mesh.dp_replicate`.

    Parameters are gathered in the autocast dtype, or in their own where there is no autocast; gradients are reduced in
    the parameter's own dtype (`MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)`).

    Known limitations: copies into the gather buffer, the barrier of gradient clipping (a few bytes) and
    `shard_placement_fn` are left out.
    """
    editor = TraceEditor(trace)
    shard_states(editor, mesh.dp_shard)
    hooks = Hooks(editor, mesh, policy)
    _drop_weight_casts(editor)
    hooks.take_over_gradients()
    hooks.run()
    return editor.finish(notes=data_parallel_notes(trace) + _accumulation_notes(trace, mesh, policy))


def fully_shard_snippet(
    mesh: Mesh, axes: tuple[str, ...], *, reshard: bool, blocks: str, loop: Iterable[str] = ()
) -> str:
    """Code of today's torch (2.11 to 2.14); `loop`: what to call before each backward."""
    degrees = "".join(f"{mesh.degree(axis)}, " for axis in axes).rstrip()
    names = "".join(f'"{axis}", ' for axis in axes).rstrip()
    lines = [
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        "",
        f'mesh = init_device_mesh("cuda", ({degrees}), mesh_dim_names=({names}))',
        "# param_dtype: the autocast dtype, or None without autocast; reduce_dtype: the parameters' own dtype",
        "policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)",
        f"for block in {blocks}:  # the repeated blocks of the model, children before parents",
        f"    fully_shard(block, mesh=mesh, reshard_after_forward={reshard}, mp_policy=policy)",
        "fully_shard(model, mesh=mesh, mp_policy=policy)  # the root stays gathered after forward",
        "optimizer = make_optimizer(model)  # after sharding: it must see the shards",
    ]
    if calls := list(loop):
        lines += ["for index, batch in enumerate(micro_batches):", "    is_last = index == len(micro_batches) - 1"]
        lines += [f"    {call}" for call in calls]
        lines += ["    (compute_loss(model, batch) / len(micro_batches)).backward()"]
    return "\n".join(lines) + "\n"


def _accumulation_notes(trace: StepTrace, mesh: Mesh, policy: FullyShardPolicy) -> tuple[str, ...]:
    if trace.num_microbatches == 1:
        return ()
    when = "once, after accumulating unsharded" if policy.reduce_once else "after every micro-batch"
    over_replicas = ", over the replicas in the last one only" if mesh.dp_replicate > 1 else ""
    return (f"gradients are reduced {when}{over_replicas}",)


def _drop_weight_casts(editor: TraceEditor) -> None:
    """Autocast casts no weight: `fully_shard` gathers them in the compute dtype."""
    trace = editor.trace
    weights = {parameter.storage for parameter in trace.parameters}
    for position, op in enumerate(trace.ops):
        if op.name.startswith("aten._to_copy") and op.inputs[0].storage in weights:
            source, result = op.inputs[0], op.outputs[0]
            if result.dtype == trace.autocast_dtype and result.numel == source.numel:
                editor.drop(position)
                editor.forget(result.storage)
