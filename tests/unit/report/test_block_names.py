from dataclasses import replace

import pytest
from fabricated_traces import linear_chain

from advisor.report.block_names import blocks_expression
from advisor.trace.records import BlockChain, ModuleRecord


@pytest.mark.parametrize(
    ("chains", "others", "expected"),
    [
        ([], (), None),
        ([("model.layers.0", "model.layers.1")], (), "model.model.layers"),
        ([("h.0", "h.1")], ("h.2",), "model.h[0:2]"),
        ([("2", "3")], (), "model[2:4]"),
        ([("layers.0.blocks.0", "layers.0.blocks.1")], (), "model.layers[0].blocks"),
        ([("a", "b")], (), "[model.a, model.b]"),
        ([("h.0", "h.2")], (), "[model.h[0], model.h[2]]"),
        ([("e.0", "e.1"), ("d.0", "d.1")], (), "[*model.e, *model.d]"),
    ],
)
def test_blocks_as_the_user_reaches_them(
    chains: list[tuple[str, ...]], others: tuple[str, ...], expected: str | None
) -> None:
    names = [*(name for chain in chains for name in chain), *others]
    trace = replace(
        linear_chain(),
        block_chains=tuple(BlockChain(names=chain, type_name="Block") for chain in chains),
        modules=tuple(ModuleRecord(name=name, type_name="Block", num_parameters=1) for name in names),
    )
    assert blocks_expression(trace) == expected
