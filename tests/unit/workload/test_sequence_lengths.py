from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.workload.sequence_lengths import of_lengths, parse


def test_a_share_is_the_fill() -> None:
    lengths = parse("0.43")
    assert lengths.mean_fill(1024) == 0.43
    assert "43 % full on average, as stated" in lengths.note(1024)


@pytest.mark.parametrize(
    "name, text", [("l.txt", "10\n\n 30 \n50\n"), ("l.jsonl", "10\n30\n50\n"), ("l.json", "[10, 30, 50]")]
)
def test_a_file_gives_the_mean_of_what_is_kept_of_each_sample(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    lengths = parse(name, folder=tmp_path)
    assert lengths.mean_fill(100) == (10 + 30 + 50) / 300
    assert lengths.mean_fill(40) == (10 + 30 + 40) / 120
    assert lengths.note(40).endswith(f"by 3 samples of {name}; 1 longer ones (33 %) are cut to 40")
    assert lengths.note(50).endswith("; none is longer")


@pytest.mark.parametrize("text", ["0", "-0.1", "1.01", "43", "nan", "inf"])
def test_a_share_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="no share of a row"):
        parse(text)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("l.txt", "10\nten\n", "l.txt:2: 'ten' is no length"),
        ("l.txt", "10\n\n0\n", "l.txt:3: 0 is no length"),
        ("l.txt", "10\n1.5\n", "l.txt:2: '1.5' is no length"),
        ("l.txt", "9" * 5000, "l.txt:1: '999"),
        ("l.txt", "9" * 40, "a length of 1e+40 tokens"),
        ("l.txt", "\n", "holds no length"),
        ("l.json", "[]", "holds no length"),
        ("l.json", "[10, true]", "l.json, item 2: True is no length"),
        ("l.json", '{"a": 1}', "holds no list"),
        ("l.json", "[10,\n", "l.json:2: not JSON"),
        ("l.json", "[" * 100_000, "l.json is no list of lengths"),
    ],
)
def test_what_can_not_be_read_says_where(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        parse(name, folder=tmp_path)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a number nor a file that can be read: No such file"):
        parse("lengths.txt", folder=tmp_path)
    (tmp_path / "l.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"l\.bin is no text"):
        parse("l.bin", folder=tmp_path)


def test_lengths_from_python_are_checked() -> None:
    assert of_lengths([1, 3], source="sequence_lengths").mean_fill(4) == 0.5
    with pytest.raises(UsageError, match="item 2: 'x' is no length"):
        of_lengths([1, "x"], source="sequence_lengths")
