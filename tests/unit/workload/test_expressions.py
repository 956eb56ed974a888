"""Flag values as expressions in the namespace of the user's file."""

from __future__ import annotations

import pytest
import torch

from advisor.errors import WorkloadError
from advisor.workload.expressions import dotted_name, namespace, parse


def test_names_of_the_file_win() -> None:
    scope = namespace({"F": "mine", "Net": torch.nn.Linear})
    assert scope["F"] == "mine"
    assert scope["nn"] is torch.nn
    assert scope["imp"]("math") is scope["math"]
    assert scope["NS"](a=1).a == 1


def test_lambdas_and_comprehensions_see_what_is_bound() -> None:
    expression = parse("[(lambda i: i * B)(i) for i in range(3)]", flag="--batch", scope={})
    assert expression(B=4) == [0, 4, 8]
    assert "B" in expression.names


def test_a_bare_tuple() -> None:
    assert parse("B, B + 1", flag="--batch", scope={})(B=1) == (1, 2)


def test_no_expression() -> None:
    with pytest.raises(WorkloadError) as caught:
        parse("x = 1", flag="--model", scope={})
    assert caught.value.message.startswith("--model 'x = 1' is not a Python expression")
    assert caught.value.hint is not None
    assert "--model build.py:make" in caught.value.hint


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(NameError) as caught:
        parse("sise", flag="--batch", scope={})(B=2)
    assert caught.value.__notes__ == [
        "--batch is evaluated in the file's own namespace, plus B, torch, nn, F, np, math, json, NS, imp"
    ]


def test_dotted_name() -> None:
    assert dotted_name("models.Net")
    assert not dotted_name("Net()")
