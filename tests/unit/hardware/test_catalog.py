"""Profiles are found by name or path; the user's own come first; the unknown is an error with the closest names."""

from pathlib import Path

import pytest

from advisor.errors import ProfileError
from advisor.hardware import catalog

OWN = """
title = "My card"
vendor = "ACME"
architecture = "X"
device_type = "xpu"
memory_capacity = { value = "12 GiB", source = "own" }
[sources.own]
title = "Own"
note = "internal"
"""


@pytest.fixture(autouse=True)
def empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profiles of the person who runs the tests."""
    monkeypatch.delenv("ADVISOR_PROFILES", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def _write(folder: Path, name: str, text: str = OWN) -> Path:
    (folder / "devices").mkdir(parents=True, exist_ok=True)
    path = folder / "devices" / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["rtx-3090", "RTX 3090", "rtx_3090", " Rtx-3090 "])
def test_case_spaces_and_underscores_do_not_matter(name: str) -> None:
    assert catalog.device(name).name == "rtx-3090"


def test_a_cluster_by_its_providers_spelling() -> None:
    assert catalog.cluster("p5.48xlarge").device == "h100-sxm5-80gb"
    assert catalog.cluster("ND96isr_H100_v5").devices_per_node == 8
    assert catalog.is_cluster("DGX H100")
    assert not catalog.is_cluster("h100-sxm5-80gb")


@pytest.mark.parametrize(
    ("name", "close"),
    [("rtx-3091", "'rtx-3090'"), ("h100", "'h100-sxm5-80gb'"), ("A100 SXM4", "'a100-sxm4-40gb' or 'a100-sxm4-80gb'")],
)
def test_an_unknown_device_gets_the_closest_names(name: str, close: str) -> None:
    with pytest.raises(ProfileError, match="unknown device") as caught:
        catalog.device(name)
    assert close in (caught.value.hint or "")


def test_nothing_close() -> None:
    with pytest.raises(ProfileError) as caught:
        catalog.cluster("zzz")
    assert "advisor profiles list" in (caught.value.hint or "")
    assert "did you mean" not in (caught.value.hint or "")


def test_a_device_too_little_is_published_about() -> None:
    with pytest.raises(ProfileError, match=r"TPU v6e .* is known, but .* memory bandwidth .* not published"):
        catalog.device("TPU v6e")
    with pytest.raises(ProfileError, match="use mi250x-gcd"):
        catalog.device("mi250x")


def test_a_path_wins(tmp_path: Path) -> None:
    path = _write(tmp_path, "t4")
    assert catalog.device(path).title == "My card"
    assert catalog.device("./devices/t4.toml").title == "My card"
    assert catalog.device("t4").title == "NVIDIA T4"


def test_a_missing_path() -> None:
    with pytest.raises(ProfileError, match=r"no profile at ./nowhere\.toml"):
        catalog.device("./nowhere.toml")


def test_own_folders_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "home/.config/advisor/profiles", "t4", OWN.replace("My card", "home"))
    assert catalog.device("t4").title == "home"
    _write(tmp_path / "advisor-profiles", "t4", OWN.replace("My card", "here"))
    assert catalog.device("t4").title == "here"
    _write(tmp_path / "given", "T4", OWN.replace("My card", "given"))
    monkeypatch.setenv("ADVISOR_PROFILES", str(tmp_path / "given"))
    assert catalog.device("t4").title == "given"
    assert catalog.device("l4").title == "NVIDIA L4"
    assert [name for name in catalog.device_names() if name.lower() == "t4"] == ["T4"]


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert catalog.device("t4").name == "t4"


def test_a_given_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_PROFILES", "nowhere")
    with pytest.raises(ProfileError, match="ADVISOR_PROFILES is 'nowhere', which is no folder"):
        catalog.device("t4")


def test_check_names_a_device_nobody_described(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'title = "N"\ndevice = "rtx-3091"\ndevices_per_node = 1\n[sources.own]\ntitle = "Own"\nnote = "x"\n'
    )
    with pytest.raises(ProfileError, match="unknown device 'rtx-3091'"):
        catalog.check(path)
