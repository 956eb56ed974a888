"""The verdict of `assess`, through `main()`, on jobs whose answer was written down before it was asked for.

Where the answer was another and is right, `why` says "expected X: wrong because ...".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.cli import main
from advisor.report.model import Report, load
from advisor.search.plan import VerdictKind

SINGLE, DATA, MODEL, INFEASIBLE = VerdictKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, where it is to run, and what must come out."""

    name: str
    target: str  # a file of tests/models, "config.json" for `config`, or timm:NAME
    config: dict[str, object] | None = None
    flags: str
    expected: VerdictKind
    undetermined: bool = False
    why: str


# Llama 3, as in the config.json of its three sizes; what the class defaults to anyway is left out.
LLAMA_3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
LLAMA_8B = LLAMA_3 | {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_70B = LLAMA_3 | {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LLAMA_405B = LLAMA_3 | {
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}

RTX_3090 = "--device rtx-3090"
WORKSTATION = f"{RTX_3090} --cluster 4x-rtx-3090-workstation --max-devices 4"
DGX_A100 = "--device a100-sxm4-80gb --cluster dgx-a100-80gb --max-devices 64"
SMALL_JOB = f"{RTX_3090} --global-batch 64 --samples 1M --deadline 7d"

QUICK = [
    Case(
        name="mlp",
        target="mlp.py",
        flags=f"{RTX_3090} --deadline 7d",
        expected=SINGLE,
        why="150 thousand parameters, 4000 steps: both its memory and its time are those of starting a step",
    ),
    Case(
        name="lstm",
        target="lstm.py",
        flags=f"{SMALL_JOB} --model RNNModel(1000,64,64,2) --batch torch.randint(0,1000,(35,B)),model.init_hidden(B)"
        " --target torch.randint(0,1000,(35*B,)) --loss F.nll_loss(out[0],target)",
        expected=SINGLE,
        why="200 thousand parameters, 16 thousand steps",
    ),
    Case(
        name="lightning",
        target="lit.py:LitClassifier",
        flags=f"{SMALL_JOB} --input f32:1x28x28 --target i64[0,10)",
        expected=SINGLE,
        why="51 thousand parameters, 16 thousand steps",
    ),
    Case(
        name="no deadline can be this short",
        target="mlp.py",
        flags=f"{WORKSTATION} --samples 1B --deadline 1s",
        expected=INFEASIBLE,
        why="four million steps of a step that no device starts in 250 ns",
    ),
    Case(
        name="no room",
        target="mlp.py",
        flags="--device-memory 1MiB",
        expected=INFEASIBLE,
        why="151 thousand parameters are 0.6 MB, gradients and momentum as much again each",
    ),
    Case(
        name="no length",
        target="lit.py:LitClassifier",
        flags=f"{RTX_3090} --global-batch 64 --input f32:1x28x28 --target i64[0,10)",
        expected=SINGLE,
        undetermined=True,
        why="it fits; how long it may take was not said",
    ),
    Case(
        name="memory alone",
        target="mlp.py",
        flags="--device-memory 11019MiB --deadline 7d",
        expected=SINGLE,
        undetermined=True,
        why="it fits; a device without rates has no step time",
    ),
]

SLOW = [
    Case(
        name="cnn",
        target="cnn.py",
        flags=f"{SMALL_JOB} --input f32:3x32x32 --target i64[0,10) --loss ce",
        expected=SINGLE,
        why="75 thousand parameters on images of 32 x 32",
    ),
    Case(name="gpt", target="gpt.py", flags=SMALL_JOB, expected=SINGLE, why="two layers of width 64"),
    Case(name="moe", target="moe.py", flags=SMALL_JOB, expected=SINGLE, why="two layers of four experts of width 32"),
    Case(
        name="diffusion",
        target="diffusion.py",
        flags=f"{SMALL_JOB} --input f32:3x32x32 --call model.training_loss(*batch)",
        expected=SINGLE,
        why="11 thousand parameters on images of 32 x 32",
    ),
    Case(
        name="unet",
        target="unet.py:small_unet",
        flags=f"{SMALL_JOB} --input f32:1x64x64 --target i64[0,2):64x64 --loss ce",
        expected=SINGLE,
        why="width 8 on images of 64 x 64",
    ),
    Case(
        name="bert",
        target="config.json",
        config=BERT,
        flags=f"{RTX_3090} --global-batch 32 --samples 1M --deadline 7d",
        expected=SINGLE,
        why="110 M parameters: 16 B each are 1.8 GB; 6 x 110 M x 512 tokens x 1 M are 3.4e17 FLOPs, 5 h at 20 TFLOP/s",
    ),
    Case(
        name="t5",
        target="config.json",
        config=T5,
        flags=f"{RTX_3090} --global-batch 32 --samples 1M --deadline 7d",
        expected=SINGLE,
        why="60 M parameters of t5-small, sequences of 512: half of BERT",
    ),
    Case(
        name="llama 405b on one small card",
        target="config.json",
        config=LLAMA_405B,
        flags=f"{RTX_3090} --global-batch 64 --samples 2000",
        expected=INFEASIBLE,
        why="810 GB of 16-bit weights on 24 GB, and no cluster was offered",
    ),
    Case(
        name="llama 8b on a100s",
        target="config.json",
        config=LLAMA_8B,
        flags=f"{DGX_A100} --global-batch 64 --samples 2M --deadline 30d",
        expected=DATA,
        why="6 x 8e9 x 8192 x 2e6 are 7.9e20 FLOPs, 58 days at half of 312 TFLOP/s: one A100 is too slow, eight do",
    ),
    Case(
        name="llama 8b on four small cards",
        target="config.json",
        config=LLAMA_8B,
        flags=f"{WORKSTATION} --global-batch 64 --samples 2M --deadline 30d",
        expected=INFEASIBLE,
        why="7.9e20 FLOPs are 32 days at the dense 16-bit peak (71 TFLOP/s) of all four cards",
    ),
    Case(
        name="llama 70b on a100s",
        target="config.json",
        config=LLAMA_70B,
        flags=f"{DGX_A100} --global-batch 64 --samples 20k --deadline 5d",
        expected=DATA,
        why="16 B x 70e9 are 1.1 TB, 18 GB on each of 64; 6.9e19 FLOPs are 2 h on 64 at half of 312 TFLOP/s",
    ),
    Case(
        name="llama 405b on a100s",
        target="config.json",
        config=LLAMA_405B,
        flags=f"{DGX_A100} --global-batch 64 --samples 2000",
        expected=MODEL,
        undetermined=True,
        why="16 B x 405e9 are 6.5 TB, 101 GB on each of 64 devices of 80 GB",
    ),
]

TIMM = [
    Case(name=name, target=f"timm:{name}", flags=f"{RTX_3090} --global-batch 64 --samples 10M --deadline 7d",
         expected=SINGLE, why=why)
    for name, why in {
        "resnet50": "25 M parameters; an RTX 3090 trains several hundred images a second, 10 M take half a day",
        "vit_base_patch16_224": "86 M parameters; 3 x 35 GFLOPs an image, 10 M are 1e18 FLOPs: 12 h at 25 TFLOP/s",
        "swin_tiny_patch4_window7_224": "28 M parameters; a quarter of ViT-B's FLOPs, more of its time in memory",
    }.items()
]  # fmt: skip


def assessed(case: Case, folder: Path) -> Report:
    target = case.target if case.config or case.target.startswith("timm:") else str(MODELS / case.target)
    if case.config is not None:
        (folder / target).write_text(json.dumps(case.config))
    output = "report.json"
    with pytest.raises(SystemExit) as ended:
        main(["assess", target, *case.flags.split(), "--no-measure", "-q", "-f", "json", "-o", output])
    assert ended.value.code == 0
    return load(folder / output)


def _named(cases: list[Case], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(case, id=case.name, marks=marks) for case in cases]


@pytest.mark.parametrize(
    "case", [*_named(QUICK), *_named(SLOW, pytest.mark.slow), *_named(TIMM, pytest.mark.slow, pytest.mark.models)]
)
def test_verdict(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.target.startswith("timm:"):
        pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    report = assessed(case, tmp_path)
    verdict = report.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.undetermined) == (case.expected, case.undetermined), verdict.sentence
    for candidate in (report.single, report.nearest_single, report.distributed):
        assert candidate is None or candidate.plan.recipe.choice("variant") is None, "a smaller model is not the answer"
    if case.expected is SINGLE:
        assert report.recommended is not None
        assert report.recommended.plan.num_devices == 1
        assert report.recommended.estimate.memory.fits
    if case.name == "memory alone":
        assert report.baseline.estimate.time is None
        assert "time is left blank" in verdict.sentence
    if case.name == "no length":
        assert verdict.decide_by == "give --samples, --tokens or --steps (and --deadline)"
