import pytest

from advisor.discovery import discover
from advisor.options.base import Names, Option

OPTIONS = discover("advisor.options", "OPTION", Option)
NAMES = Names(optimizer="SGD", blocks="model.model.layers")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("checkpointing", "all", "set(model.model.layers)"),
        ("checkpointing", "every-2", "set(model.model.layers[::2])"),
        ("optimizer", "fused", "torch.optim.SGD(model.parameters(), lr=lr, fused=True)"),
        ("offload_optimizer", "on", "CPUOffloadOptimizer(model.parameters(), torch.optim.SGD, lr=lr"),
        ("optimizer_in_backward", "on", "torch.optim.SGD([p], lr=lr"),
        ("precision", "bf16-kahan", "optimi.SGD("),
        ("variant", "half-depth", "# In the config that your model is built from: half as many layers"),
        ("variant", "tiny", "model = variants()['tiny']()"),
    ],
)
def test_a_snippet_speaks_of_the_users_own_things(option: str, value: str, said: str) -> None:
    assert said in OPTIONS[option].snippet(value, NAMES)


def test_an_optimizer_of_another_library_goes_by_its_name() -> None:
    assert Names(optimizer="Lion").optimizer_class == "Lion"
