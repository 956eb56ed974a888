"""A smaller model: the user's own `variants()`, or half as deep, wide or long where a config says how.

Effect: whatever the smaller model takes. Whether it is good enough is a question of quality, not of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.generate_variants import HALF_SEQUENCE, halved_batch
from advisor.workload.spec import Workload

# Those of `generate_variants`, which no function of the user's file returns.
_GENERATED = {
    "half-depth": "half as many layers",
    "half-width": "half the width, with half as many heads",
    HALF_SEQUENCE: "half the positions; and cut the batch to them",
}


class Variant(Option):
    name = "variant"
    order = 10  # everything else applies to the model that is built
    title = "Model variant"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("as-is", *facts.variants)

    def why_not(self, facts: Facts) -> str | None:
        return None if facts.variants else "the file declares no variants() and no config to make them from"

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING if value == "as-is" else Risk.MODEL

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "as-is":
            return workload
        builder = workload.variants.get(value)
        if builder is None:
            raise unknown_value(self, value, ("as-is", *workload.variants))
        smaller = replace(workload, build_model=builder)
        if value == HALF_SEQUENCE:
            return replace(smaller, make_batch=lambda size: halved_batch(workload.make_batch(size)))
        return smaller

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        if value == "as-is":
            return ""
        if value in _GENERATED:
            return f"# In the config that your model is built from: {_GENERATED[value]}.\n"
        return f"model = variants()[{value!r}]()\n"


OPTION = Variant()
