from pathlib import Path

import pytest

from advisor.cli.init import STARTER, init
from advisor.cli.settings import advisor_layer, merge, request
from advisor.errors import UsageError


def test_writes_and_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    assert init(file) == 0
    assert file.read_text() == STARTER
    assert f"advisor assess {file}" in capsys.readouterr().out
    file.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        init(file)
    assert file.read_text() == "mine"
    assert init(file, force=True) == 0
    with pytest.raises(UsageError, match="no folder"):
        init(tmp_path / "none" / "model.py")


def test_its_settings_are_settings() -> None:
    namespace: dict = {}
    exec(compile(STARTER, "model.py", "exec"), namespace)
    own = {name: str(value) for name, value in namespace["ADVISOR"].items()}
    asked = request(merge(advisor_layer(own, target="model.py")))
    assert (asked.micro_batch_size, asked.global_batch_size, asked.samples) == (64, 256, 40_000_000)


def test_one_step_of_it_runs() -> None:
    namespace: dict = {}
    exec(compile(STARTER, "model.py", "exec"), namespace)
    for build in (namespace["build_model"], *namespace["variants"]().values()):
        model = build()
        loss = namespace["compute_loss"](model, namespace["make_batch"](2))
        loss.backward()
        namespace["make_optimizer"](model).step()
        assert loss.ndim == 0
