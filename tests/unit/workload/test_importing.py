"""Import as the user's own Python would, and say whose line failed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.errors import WorkloadError
from advisor.workload.importing import import_file, import_module, repository_root

Write = Callable[[str, str], Path]


def test_a_sibling_and_a_module_of_the_root(write: Write) -> None:
    write("repo/pyproject.toml", "")
    write("repo/shared_layers.py", "WIDTH = 8\n")
    write("repo/src/sibling_of_model.py", "DEPTH = 2\n")
    path = write("repo/src/model_a.py", "from shared_layers import WIDTH\nfrom sibling_of_model import DEPTH\n")
    module = import_file(path)
    assert (module.WIDTH, module.DEPTH) == (8, 2)


def test_relative_imports_without_a_package(write: Write) -> None:
    write("repo/nets/parts.py", "WIDTH = 3\n")
    path = write("repo/nets/model_b.py", "from .parts import WIDTH\n")
    assert import_file(path).WIDTH == 3


def test_a_package_is_imported_by_its_dotted_name(write: Write) -> None:
    write("repo/outer_p/__init__.py", "")
    write("repo/outer_p/inner/__init__.py", "")
    write("repo/outer_p/parts.py", "WIDTH = 4\n")
    path = write("repo/outer_p/inner/model_c.py", "from ..parts import WIDTH\n")
    module = import_file(path)
    assert module.WIDTH == 4
    assert module.__name__ == "outer_p.inner.model_c"


def test_a_package_whose_init_fails_is_passed_by(write: Write) -> None:
    write("repo/broken_p/__init__.py", "import no_such_package_of_ours\n")
    path = write("repo/broken_p/model_d.py", "WIDTH = 5\n")
    assert import_file(path).WIDTH == 5


def test_a_stem_that_python_uses_itself(write: Write) -> None:
    path = write("random.py", "WIDTH = 6\n")
    import random

    assert import_file(path).WIDTH == 6
    assert sys.modules["random"] is random


def test_argv_is_the_file_alone(write: Write) -> None:
    path = write("script.py", "import sys\nargv = list(sys.argv)\n")
    before = list(sys.argv)
    assert import_file(path).argv == [str(path)]
    assert sys.argv == before


def test_repository_root(write: Write) -> None:
    write("repo/setup.py", "")
    assert repository_root(write("repo/a/b/model.py", "")).name == "repo"
    write("other/p/__init__.py", "")
    assert repository_root(write("other/p/model.py", "")).name == "other"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("broken_syntax.py", "broken_syntax.py:4 (class Net(nn.Module)): SyntaxError", None),
        ("broken_import.py", "broken_import.py:3 (import no_such_package_of_ours): ModuleNotFoundError", "pip install"),
        ("calls_exit.py", "calls_exit.py:9 (sys.exit(3)): it called sys.exit(3)", "if __name__ == '__main__'"),
        ("installs.py", "pip install no-such-package-of-ours`, asked for at", "install what the file needs yourself"),
    ],
)
def test_files_that_can_not_be_imported(name: str, message: str, hint: str | None) -> None:
    with pytest.raises(WorkloadError) as caught:
        import_file(MODELS / name)
    assert message in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


def test_an_install_that_is_refused_is_named_even_where_the_file_swallows_it(write: Write) -> None:
    path = write(
        "swallows.py", "import os\ntry:\n    os.system('pip3 install x')\nexcept Exception:\n    pass\nimport x_of_y\n"
    )
    with pytest.raises(WorkloadError) as caught:
        import_file(path)
    assert f"{path}:6 (import x_of_y): ModuleNotFoundError" in caught.value.message
    assert f"refused to run `pip3 install x`, asked for at {path}:3" in caught.value.message


def test_other_processes_may_start(write: Write) -> None:
    path = write(
        "starts.py", "import subprocess, sys\nout = subprocess.check_output([sys.executable, '-c', 'print(7)'])\n"
    )
    start, system = subprocess.Popen.__init__, os.system
    assert import_file(path).out == b"7\n"
    assert (subprocess.Popen.__init__, os.system) == (start, system)


def test_not_python(write: Write) -> None:
    with pytest.raises(WorkloadError, match=r"is not a Python file|SyntaxError"):
        import_file(write("model.py", "\0"))


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(WorkloadError, match=r"importing no_such_package_of_ours.model failed: ModuleNotFoundError"):
        import_module("no_such_package_of_ours.model")
