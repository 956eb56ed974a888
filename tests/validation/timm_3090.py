"""Fit decisions and step times of timm models on an RTX 3090, predicted against published.

    python tests/validation/timm_3090.py --published FOLDER [--models 100|all] [--seed 0] [--layout both] [--jobs 1]

FOLDER holds `timm_train.csv` (huggingface/pytorch-image-models results/benchmark-train-*.csv, one header for all).
Rows of torch 1.12 count: AMP float16 without a GradScaler, SGD, 50 steps on one card. The benchmark lowered the batch
along a ladder until they ran: the batch of a row fits, the next larger one did not. A model that can't be assessed is
named with its error and counts as a miss; one that timm has changed since, whose parameters are not as many as the row
says, is named and counts as it comes. Time factors, context and memory band of profiles/calibration/rtx-3090.toml were
fitted on 239 of the rows, drawn with seed 7.

The step is that of `TrainBenchmarkRunner` in timm's benchmark.py at 8ad4bdfa (2022-07-28) under torch 1.12:

* `optimizer.zero_grad()` fills gradients with zeros: they are there during the next forward.
* `loss.backward()` runs inside autocast: its casts of the weights live until backward is over.
* Attention is written out, there being no fused one.
* `torch.backends.cudnn.benchmark` is on.
* Resampling stays in float16 (autocast computes it in float32 since https://github.com/pytorch/pytorch/issues/121072).
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

LADDER = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    model: str
    layout: str  # "nchw" | "nhwc"
    image_size: int
    parameters: int  # rounded to 10,000
    batch: int
    step_s: float

    @property
    def next_batch(self) -> int | None:
        """The batch that failed."""
        return None if self.batch == LADDER[0] else LADDER[LADDER.index(self.batch) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    row: Row
    error: str = ""  # why the model could not be assessed
    parameters: int = 0
    fits: bool = False
    next_fits: bool | None = None
    undetermined: int = 0  # of the decisions
    step_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0

    @property
    def decisions(self) -> int:
        return 1 if self.row.next_batch is None else 2

    @property
    def right(self) -> int:
        return 0 if self.error else int(self.fits) + int(self.next_fits is False)

    @property
    def changed(self) -> bool:
        """Whether today's model is another one."""
        return not self.error and abs(self.parameters - self.row.parameters) > 0.01 * self.row.parameters

    @property
    def deviation(self) -> float:
        return self.step_s / self.row.step_s - 1

    def __str__(self) -> str:
        head = f"{self.row.model:42s} {self.row.layout} b{self.row.batch}"
        if self.error:
            return f"{head} FAILED {self.error}"
        later = "" if self.next_fits is None else f" next b{self.row.next_batch} fits={self.next_fits}"
        open_ = f" undetermined={self.undetermined}" if self.undetermined else ""
        changed = f" CHANGED: {self.parameters:,} parameters, then {self.row.parameters:,}" if self.changed else ""
        return f"{head} fits={self.fits}{later}{open_} time {self.deviation:+.0%}{changed}"


def read_rows(path: Path) -> list[Row]:
    """The torch 1.12 rows, in a fixed order."""
    found: dict[tuple[str, str], Row] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for record in csv.DictReader(lines):
            if "1.12" in record["software"]:
                layout = "nhwc" if "nhwc" in record["precision"] + record["url_or_repo_path"] else "nchw"
                found[record["model"], layout] = Row(
                    model=record["model"],
                    layout=layout,
                    image_size=int(record["image_size"]),
                    parameters=int(record["params"]),
                    batch=int(record["micro_batch"]),
                    step_s=float(record["step_ms"]) / 1e3,
                )
    return [found[key] for key in sorted(found)]


def assess(row: Row) -> Outcome:
    """What advisor says about the batch of `row` and the next larger one."""
    import advisor

    warnings.filterwarnings("ignore")
    settings: dict[str, Any] = {
        "device": "rtx-3090",
        "precision": "amp-fp16",
        "memory_format": "channels_last" if row.layout == "nhwc" else "contiguous",
    }
    batches = [row.batch] if row.next_batch is None else [row.batch, row.next_batch]
    try:
        with _as_torch_1_12() as casts:
            workload, sizes = _workload(row, casts)
            found, *later = (advisor.estimate(workload, micro_batch=batch, **settings) for batch in batches)
    except Exception as error:
        return Outcome(row=row, error=f"{type(error).__name__}: {str(error)[:100]}")
    assert found.time is not None
    return Outcome(
        row=row,
        parameters=sizes[0],
        fits=found.memory.fits,
        next_fits=later[0].memory.fits if later else None,
        undetermined=sum(estimate.memory.verdict == "undetermined" for estimate in (found, *later)),
        step_s=found.time.step_s,
        low_s=found.time.low_s,
        high_s=found.time.high_s,
    )


def _workload(row: Row, casts: _Casts) -> tuple[Any, list[int]]:
    """The step, and the number of parameters of every model it builds."""
    import timm
    import torch

    import advisor

    timm.layers.set_fused_attn(False)  # timm 0.6 had no fused attention

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, row.image_size, row.image_size), torch.randint(0, 1000, (size,))

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        casts.keep()
        out = model(batch[0])
        return torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple) else out, batch[1])

    class Sgd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            casts.drop()
            super().step(closure)

        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return Sgd(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)

    sizes: list[int] = []

    def build() -> torch.nn.Module:
        model = timm.create_model(row.model, pretrained=False)
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        return model

    workload = advisor.Workload(
        build_model=build,
        make_batch=batch,
        compute_loss=loss,
        make_optimizer=optimizer,
        name=row.model,
    )
    return workload, sizes


class _Casts:
    """Autocast's cache, kept until backward is over; a step that failed in between changes nothing."""

    def __init__(self) -> None:
        self.kept = False

    def keep(self) -> None:
        import torch

        if not self.kept:
            torch.autocast_increment_nesting()
        self.kept = True

    def drop(self) -> None:
        import torch

        if self.kept and torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        self.kept = False


@contextmanager
def _as_torch_1_12() -> Iterator[_Casts]:
    """Resampling gives the dtype it takes, as it did under autocast then."""
    import torch

    functional = torch.nn.functional
    today = functional.interpolate

    def interpolate(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # the trace runs on fake tensors of the CPU
            return today(*args, **kwargs)

    functional.interpolate = interpolate
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    casts = _Casts()
    try:
        yield casts
    finally:
        casts.drop()
        functional.interpolate = today
        torch.backends.cudnn.benchmark = benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the README shows."""

    models: int
    failed: tuple[str, ...]
    changed: tuple[str, ...]  # since they were measured
    decisions: int
    right: int
    wrong_fits: int
    undetermined: int
    median: float  # of the absolute deviation of the step time
    percentile_90: float
    worst: float
    in_band: int

    def __str__(self) -> str:
        lines = [
            f"{self.models} models, {len(self.failed)} could not be assessed: {', '.join(self.failed) or 'none'}",
            f"{len(self.changed)} are other models today: {', '.join(self.changed) or 'none'}",
            f"decisions: {self.right} of {self.decisions} right ({self.right / max(self.decisions, 1):.1%}), "
            f"{self.wrong_fits} wrong fits, {self.undetermined} undetermined",
            f"step time: median {self.median:.1%}, 90th percentile {self.percentile_90:.1%}, worst {self.worst:.1%}, "
            f"{self.in_band} of {self.models - len(self.failed)} in the 80 % band",
        ]
        return "\n".join(lines)


def summarise(outcomes: Sequence[Outcome]) -> Figures:
    assessed = [outcome for outcome in outcomes if not outcome.error]
    deviations = sorted(abs(outcome.deviation) for outcome in assessed) or [float("inf")]
    return Figures(
        models=len(outcomes),
        failed=tuple(f"{o.row.model} ({o.error})" for o in outcomes if o.error),
        changed=tuple(o.row.model for o in outcomes if o.changed),
        decisions=sum(outcome.decisions for outcome in outcomes),
        right=sum(outcome.right for outcome in outcomes),
        wrong_fits=sum(bool(outcome.next_fits) for outcome in assessed),
        undetermined=sum(outcome.undetermined for outcome in assessed),
        median=median(deviations),
        percentile_90=deviations[int(0.9 * (len(deviations) - 1))],
        worst=deviations[-1],
        in_band=sum(o.low_s <= o.row.step_s <= o.high_s for o in assessed),
    )


def run(rows: Sequence[Row], *, jobs: int) -> Iterable[Outcome]:
    if jobs == 1:
        yield from map(assess, rows)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(assess, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--models", default="100", help="that many rows at random, or 'all'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=("nchw", "nhwc", "both"), default="both")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)

    import timm

    rows = read_rows(given.published / "timm_train.csv")
    rows = [row for row in rows if given.layout in ("both", row.layout)]
    if given.models != "all":
        known = set(timm.list_models())  # not the names of before, most of which timm still builds
        rows = [row for row in rows if row.model in known]
        random.Random(given.seed).shuffle(rows)
        rows = rows[: int(given.models)]
    outcomes = []
    for outcome in run(rows, jobs=given.jobs):
        outcomes.append(outcome)
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{summarise(outcomes)}\n")


if __name__ == "__main__":
    main()
