"""Reports of plain data for tests of everything above `search`: plausible figures, nothing traced, no torch."""

from __future__ import annotations

from dataclasses import replace

from advisor.advice.result import LearningRateAdvice
from advisor.cost.estimate import (
    Estimate,
    FitVerdict,
    MemoryEstimate,
    OperatorTime,
    Peak,
    TimeEstimate,
    UnpricedOperator,
)
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile, Sourced
from advisor.measure.result import Measurement, Outcome
from advisor.options.base import Recipe, Risk
from advisor.report.model import Evidence, Report, Sensitivity, Setting, Snippet
from advisor.search.plan import Candidate, Goal, Plan, Rejection, Rung, ScalingPoint, Verdict, VerdictKind
from advisor.trace.records import Category, Phase
from advisor.workload.spec import Guess, WorkloadDescription

GIB = 1024**3
HOUR, DAY = 3600.0, 86_400.0
SAMPLES, GLOBAL_BATCH = 40e6, 512
DATASHEET = "NVIDIA A100 datasheet, 2021-06"

DEVICE = DeviceProfile(
    name="a100-sxm4-40gb",
    title="NVIDIA A100 SXM4 40GB",
    vendor="NVIDIA",
    architecture="Ampere",
    device_type="cuda",
    compute_capability=(8, 0),
    memory_capacity=Sourced(value=39.39 * GIB, source="torch.cuda.get_device_properties, PyTorch forum 2022-03"),
    memory_bandwidth=Sourced(value=1.555e12, source=DATASHEET),
    peak_flops={
        "bfloat16": Sourced(value=312e12, source=DATASHEET, note="dense"),
        "float32": Sourced(value=19.5e12, source=DATASHEET),
    },
    link_bandwidth=Sourced(value=300e9, source=DATASHEET),
    price_usd_per_hour=Sourced(value=1.29, source="Lambda on-demand price, 2024-05"),
)
CLUSTER = ClusterProfile(
    name="dgx-a100-40gb",
    title="NVIDIA DGX A100 (8 x 40 GB)",
    device="a100-sxm4-40gb",
    devices_per_node=8,
    intra_node_bandwidth=Sourced(value=300e9, source=DATASHEET),
    intra_node_link="NVLink3",
    inter_node_bandwidth=Sourced(value=200e9, source="DGX A100 user guide", note="8 x 200 Gbit/s"),
    inter_node_network="InfiniBand HDR",
)
DESCRIPTION = WorkloadDescription(
    target="model.py",
    model="GPT(GPTConfig())",
    batch="idx int64 (B, 1024) in [0, 50304), targets the same",
    loss="second output of forward",
    optimizer="AdamW(lr=0.0006, betas=(0.9, 0.95))",
    guesses=(
        Guess(
            what="batch",
            chosen="idx int64 (B, 1024), targets the same",
            why="the first module is an Embedding and the config has block_size=1024",
            flag="--batch",
        ),
        Guess(what="optimizer", chosen="AdamW(lr=0.0006)", why="the file makes none", flag="--optimizer"),
    ),
    source_hash="9b0c5f0dca6f0a7d6f1f6c0f6f1d0a4b7a4a2d3a1f0b9c8d7e6f5a4b3c2d1e0f",
    versions={"torch": "2.13.0", "python": "3.11.9"},
)
GOAL = Goal(global_batch_size=GLOBAL_BATCH, samples=SAMPLES, deadline_s=5 * DAY)
SETTINGS = (
    Setting(name="cluster", value="dgx-a100-40gb", origin="advisor.toml"),
    Setting(name="deadline", value="5d", origin="flag, over 7d from advisor.toml"),
    Setting(name="device", value="a100-sxm4-40gb", origin="flag"),
    Setting(name="global_batch", value="512", origin="ADVISOR in model.py"),
    Setting(name="samples", value="40M", origin="flag"),
)
ADVICE = LearningRateAdvice(
    changed=False,
    rule="",
    old_lr=6e-4,
    new_lr=6e-4,
    factor=1.0,
    batch_old=GLOBAL_BATCH,
    batch_new=GLOBAL_BATCH,
    warmup="unchanged",
    sentence="unchanged, because the global batch is unchanged (512 samples)",
    warnings=(),
    companions=(),
    source="the same global batch is the same optimisation",
)
CHANGED_ADVICE = replace(
    ADVICE,
    changed=True,
    rule="LR-2",
    new_lr=6e-4 * 2**0.5,
    factor=2**0.5,
    batch_new=1024,
    warmup="2000 steps, linear",
    sentence="scale the learning rate by the square root: 0.0006 -> 0.000849",
    warnings=("the batch passes the critical batch of 0.7M to 1.9M tokens: the last doubling buys little",),
    companions=("betas: (0.9, 0.95) -> (0.8, 0.9)", "weight decay: 0.1 -> 0.141"),
    source="Malladi 2022 arXiv:2205.10287",
)


def memory(required: float, *, usable: float = 39.39, activations: float | None = None) -> MemoryEstimate:
    """A memory estimate of `required` GiB, most of it activations."""
    fixed = {
        Category.PARAMETER: 0.46,
        Category.GRADIENT: 0.46,
        Category.OPTIMIZER_STATE: 0.93,
        Category.TEMPORARY: 0.8,
        Category.INPUT: 0.01,
        Category.WORKSPACE: 0.03,
    }
    held = required - 1.1 - sum(fixed.values()) if activations is None else activations
    categories = {Category.ACTIVATION: max(0.1, held), **fixed}
    parts = sorted(((c, int(size * GIB)) for c, size in categories.items()), key=lambda part: -part[1])
    allocated = sum(size for _, size in parts)
    peak = Peak(
        allocated_bytes=allocated,
        phase=Phase.BACKWARD,
        operator="aten._log_softmax_backward_data.default",
        module="",
        first_step=False,
        by_category=tuple(parts),
    )
    later = replace(
        peak,
        allocated_bytes=int(allocated * 0.91),
        phase=Phase.FORWARD,
        operator="aten.mm.default",
        module="transformer.h.11.mlp.c_fc",
    )
    first = replace(peak, allocated_bytes=int(allocated * 0.96), phase=Phase.OPTIMIZER, operator="aten._foreach_sqrt")
    total = int(required * GIB)
    low, high, limit = int(total * 0.97), int(total * 1.06), int(usable * GIB)
    fits = high <= limit
    blocks = tuple((f"transformer.h.{i}", int(held * GIB * 0.055)) for i in range(12))
    return MemoryEstimate(
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=total + int(1.4 * GIB),
        releasable_bytes=int(2.0 * GIB),
        context_bytes=int(0.5 * GIB),
        workspace_bytes=int(0.1 * GIB),
        communication_bytes=0,
        required_bytes=total,
        low_bytes=low,
        high_bytes=high,
        usable_bytes=limit,
        fits=fits,
        verdict=FitVerdict.FITS if fits else FitVerdict.DOES_NOT_FIT if low > limit else FitVerdict.UNDETERMINED,
        peak=peak,
        next_peak=later,
        first_step_peak=first,
        by_module=(("lm_head", int(held * GIB * 0.34)), *blocks),
        sources=("context: 0.5 GiB on A100, torch 2.x (measured by NVIDIA users, 2023)",),
    )


def operators(
    op_class: str, seconds: float, *, num_kernels: int, flops_per_s: float, bytes_per_s: float
) -> OperatorTime:
    return OperatorTime(
        op_class=op_class,
        seconds=seconds,
        num_kernels=num_kernels,
        flops=int(flops_per_s * seconds),
        num_bytes=int(bytes_per_s * seconds),
        bound="compute" if flops_per_s else "memory",
    )


def time(step_s: float, *, communication: float = 0.0, unpriced: tuple[UnpricedOperator, ...] = ()) -> TimeEstimate:
    kernels = step_s * (1 - communication)
    classes = (
        operators("matmul", kernels * 0.56, num_kernels=1812, flops_per_s=125e12, bytes_per_s=357e9),
        operators("pointwise", kernels * 0.22, num_kernels=2904, flops_per_s=0, bytes_per_s=1.18e12),
        operators("attention", kernels * 0.14, num_kernels=144, flops_per_s=93e12, bytes_per_s=214e9),
        operators("normalisation", kernels * 0.06, num_kernels=300, flops_per_s=0, bytes_per_s=1.17e12),
    )
    return TimeEstimate(
        step_s=step_s,
        low_s=step_s * 0.88,
        high_s=step_s * 1.15,
        compute_s=kernels * 0.70,
        memory_bound_s=kernels * 0.28,
        launch_bound_s=kernels * 0.02,
        exposed_communication_s=step_s * communication,
        model_flops=int(step_s * 1.2e14),
        hardware_flops=int(step_s * 1.3e14),
        mfu=0.385,
        hfu=0.417,
        by_class=classes,
        unpriced=unpriced,
        sources=("matmul, bfloat16: 0.72 of peak (fit to 41 published A100 runs)",),
    )


def candidate(
    required: float,
    step_s: float | None,
    *,
    micro_batch: int,
    ranks: int = 1,
    strategy: str | None = None,
    choices: tuple[tuple[str, str], ...] = (),
    price: float | None = 1.29,
    samples: float | None = SAMPLES,
    usable: float = 39.39,
    communication: float = 0.0,
) -> Candidate:
    """A plan at the held global batch, with what it costs to reach the goal."""
    accumulated = GLOBAL_BATCH // micro_batch // ranks
    shards = {"fsdp2": {"dp_shard": ranks}, "ddp": {"dp_replicate": ranks}}.get(strategy or "", {})
    plan = Plan(
        recipe=Recipe(micro_batch_size=micro_batch, num_microbatches=accumulated, choices=choices),
        mesh=Mesh(**shards),
        strategy=strategy,
    )
    finish = None if step_s is None or samples is None else samples / GLOBAL_BATCH * step_s
    return Candidate(
        plan=plan,
        estimate=Estimate(
            memory=memory(required, usable=usable),
            time=None if step_s is None else time(step_s, communication=communication),
            num_devices=ranks,
        ),
        finish_s=finish,
        cost_usd=None if finish is None or price is None else finish / HOUR * price * ranks,
        samples_per_s=None if step_s is None else GLOBAL_BATCH / step_s,
        efficiency=None if step_s is None else min(1.0, 4.1 / step_s / ranks),
    )


AMP = ("precision", "amp-bf16")
CHECKPOINTING = ("checkpointing", "every-2")
BASELINE = candidate(61.2, 9.4, micro_batch=32)
SINGLE = candidate(33.1, 4.1, micro_batch=32, choices=(AMP,))
LIGHTER = candidate(20.4, 5.0, micro_batch=32, choices=(CHECKPOINTING, AMP))
DISTRIBUTED = candidate(21.7, 0.56, micro_batch=32, ranks=8, strategy="ddp", choices=(AMP,), communication=0.04)


def rung(
    label: str, choice: tuple[str, str], risk: Risk, tried: Candidate | None, why: str, *, taken: bool = False
) -> Rung:
    return Rung(label=label, option=choice[0], value=choice[1], risk=risk, candidate=tried, taken=taken, why=why)


ADAM4 = ("optimizer_state", "4bit")
TF32 = candidate(61.2, 6.2, micro_batch=32, choices=(("precision", "tf32"),))
FOUR_BIT = candidate(32.3, 4.1, micro_batch=32, choices=(ADAM4, AMP))
CHANNELS_LAST = ("memory_format", "channels_last")
LADDER = (
    rung("as it is", ("", ""), Risk.NOTHING, BASELINE, "needs 61.2 GiB, 39.4 GiB are usable"),
    rung("TF32 products", ("precision", "tf32"), Risk.NUMERICS, TF32, "memory is the limit and TF32 moves no bytes"),
    rung("bf16 autocast", AMP, Risk.NUMERICS, SINGLE, "fits with 6 GiB to spare and is the fastest step", taken=True),
    rung("checkpoint every 2nd block", CHECKPOINTING, Risk.NOTHING, LIGHTER, "not needed: costs 22 % of the step"),
    rung("4-bit Adam states", ADAM4, Risk.OPTIMISATION, FOUR_BIT, "saves 0.8 GiB that are not needed"),
    rung("channels last", CHANNELS_LAST, Risk.NOTHING, None, "there is no convolution"),
)


def ddp(ranks: int, step_s: float, efficiency: float) -> ScalingPoint:
    plan = candidate(33.2, step_s, micro_batch=32, ranks=ranks, strategy="ddp", choices=(AMP,))
    return ScalingPoint(num_devices=ranks, candidate=plan, efficiency=efficiency)


NOT_DIVISIBLE = "a global batch of 512 is not divisible by 48 ranks"
SCALING = (
    ScalingPoint(num_devices=1, candidate=SINGLE, efficiency=1.0),
    ddp(2, 2.1, 0.98),
    ddp(4, 1.08, 0.95),
    ScalingPoint(num_devices=8, candidate=DISTRIBUTED, efficiency=0.915),
    ddp(16, 0.41, 0.63),
    ScalingPoint(num_devices=48, candidate=None, efficiency=None, reason=NOT_DIVISIBLE),
)

SENSITIVITIES = (
    Sensitivity(
        what="deadline",
        change="5 d -> 3 d",
        effect="one device no longer finishes in time: data-parallel on 2 devices",
        flips=True,
    ),
    Sensitivity(
        what="link speed",
        change="-30 %",
        effect="the plan on 8 devices finishes in 12.6 h instead of 12.2 h",
        flips=False,
    ),
    Sensitivity(what="our error band", change="slow end", effect="one device finishes in 4.3 days", flips=False),
)

EVIDENCE = Evidence(
    advisor_version="0.1.0",
    input_hash="4f6c1a0d9b7e8f2a3c5d1e0f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b",
    known_error="memory within 3 % and step time within 12 % (median of 41 published A100 runs of language models)",
    rates=("matmul, bfloat16: 0.72 of peak (fit to 41 published A100 runs)", "context: 0.5 GiB on A100, torch 2.x"),
    notes=("dropout was traced as in training mode", "torch.compile is only measured, never predicted"),
)


def single_device() -> Report:
    """One A100 is enough, within a deadline; a cluster was offered."""
    return Report(
        description=DESCRIPTION,
        num_parameters=124_475_904,
        num_trainable_parameters=124_475_904,
        settings=SETTINGS,
        goal=GOAL,
        device=DEVICE,
        cluster=CLUSTER,
        verdict=Verdict(
            kind=VerdictKind.SINGLE_DEVICE,
            undetermined=False,
            sentence="one NVIDIA A100 SXM4 40GB does it, with bf16 autocast, in 3.71 days",
            margin="uses 84 % of memory; finishes in 74 % of the deadline",
        ),
        baseline=BASELINE,
        single=SINGLE,
        nearest_single=SINGLE,
        distributed=DISTRIBUTED,
        ladder=LADDER,
        scaling=SCALING,
        rejections=(
            Rejection(plan=None, label="DDP on 48 devices", reason=NOT_DIVISIBLE),
            Rejection(plan=replace(LIGHTER.plan), label="checkpoint all blocks", reason="dominated by bf16 autocast"),
        ),
        max_micro_batch_size=38,
        max_sequence_length=1216,
        pays_from_devices=2,
        pays_until_devices=8,
        learning_rate=ADVICE,
        sensitivities=SENSITIVITIES,
        snippets=(
            Snippet(
                title="Precision: amp-bf16",
                code="with torch.autocast(device.type, dtype=torch.bfloat16):\n    loss = compute_loss(model, batch)\n",
            ),
        ),
        confirm_command="advisor measure model.py --micro-batch 32 --global-batch 512 --option precision=amp-bf16",
        evidence=EVIDENCE,
    )


def data_parallel() -> Report:
    """One device would be too late: eight do it. The global batch was doubled on request."""
    base = single_device()
    verdict = Verdict(
        kind=VerdictKind.DATA_PARALLEL,
        undetermined=False,
        sentence="DDP on 8 devices finishes in 12.2 h; one device needs 3.71 days of the 1 day allowed",
        margin="uses 55 % of memory; finishes in 51 % of the deadline",
    )
    goal = replace(GOAL, deadline_s=DAY, budget_usd=2000.0)
    return base.model_copy(update={"verdict": verdict, "goal": goal, "learning_rate": CHANGED_ADVICE})


def infeasible() -> Report:
    """Nothing fits the budget, no price source, no cluster."""
    base = single_device()
    nearest = candidate(33.1, 4.1, micro_batch=32, choices=(AMP,), price=None)
    return base.model_copy(
        update={
            "device": replace(DEVICE, price_usd_per_hour=None),
            "cluster": None,
            "goal": replace(GOAL, deadline_s=DAY),
            "verdict": Verdict(
                kind=VerdictKind.INFEASIBLE,
                undetermined=False,
                sentence="one device needs 3.71 days of the 1 day allowed, and no cluster was named",
                margin="misses the deadline by 271 %",
                would_have_to_give="a deadline of 3.71 days, or a cluster (--cluster)",
            ),
            "baseline": replace(BASELINE, cost_usd=None),
            "single": None,
            "nearest_single": nearest,
            "distributed": None,
            "scaling": (),
            "rejections": (),
            "pays_from_devices": None,
            "pays_until_devices": None,
            "snippets": (),
            "settings": (),
        }
    )


def undetermined() -> Report:
    """A device known by its memory alone, no goal: time can't be decided, and memory is close."""
    device = DeviceProfile(
        name="11019 MiB device",
        title="a device with 11019 MiB",
        vendor="",
        architecture="",
        device_type="cuda",
        memory_capacity=Sourced(value=11019 * 1024**2, source="--device-memory"),
    )
    baseline = candidate(10.5, None, micro_batch=8, samples=None, usable=10.76)
    return Report(
        description=DESCRIPTION,
        settings=(Setting(name="device_memory", value="11019MiB", origin="flag"),),
        goal=Goal(global_batch_size=GLOBAL_BATCH),
        device=device,
        verdict=Verdict(
            kind=VerdictKind.SINGLE_DEVICE,
            undetermined=True,
            sentence="may fit as it is; the error band straddles the memory of the device",
            margin="97 % of memory",
            decide_by="run one step on the device: advisor measure model.py --micro-batch 8 (about 1 min)",
        ),
        baseline=baseline,
        single=baseline,
        nearest_single=baseline,
        ladder=(rung("as it is", ("", ""), Risk.NOTHING, baseline, "fits at the low end of the band", taken=True),),
        evidence=replace(EVIDENCE, known_error="", rates=(), notes=()),
    )


MEASUREMENT = Measurement(
    outcome=Outcome.COMPLETED,
    device="cuda: NVIDIA A100-SXM4-40GB",
    step_time_s=4.4,
    step_time_low_s=4.31,
    step_time_high_s=4.62,
    num_steps=12,
    peak_allocated_bytes=int(30.9 * GIB),
    peak_process_bytes=int(32.0 * GIB),
    software="torch 2.13.0",
)


def measured() -> Report:
    """As `single_device`, with both runs made here: one completed, one out of memory."""
    failed = Measurement(outcome=Outcome.OUT_OF_MEMORY, reason="model.py:112 in forward", device=MEASUREMENT.device)
    return single_device().model_copy(
        update={
            "baseline": replace(BASELINE, measurement=failed),
            "single": replace(SINGLE, measurement=MEASUREMENT),
        }
    )


def estimate() -> Report:
    """One exact configuration, not run."""
    return Report(
        question="estimate",
        description=DESCRIPTION,
        num_parameters=124_475_904,
        num_trainable_parameters=124_475_904,
        settings=SETTINGS,
        goal=GOAL,
        device=DEVICE,
        cluster=CLUSTER,
        baseline=replace(
            DISTRIBUTED,
            estimate=replace(
                DISTRIBUTED.estimate,
                time=time(
                    0.56,
                    communication=0.04,
                    unpriced=(
                        UnpricedOperator(
                            name="mylib.scan.default", count=24, bound_seconds=0.004, module="transformer.h.0.ssm"
                        ),
                    ),
                ),
            ),
        ),
        evidence=EVIDENCE,
    )


def measure() -> Report:
    """One exact configuration, run here."""
    return estimate().model_copy(
        update={"question": "measure", "cluster": None, "baseline": replace(SINGLE, measurement=MEASUREMENT)}
    )


REPORTS = {
    "single_device": single_device,
    "data_parallel": data_parallel,
    "infeasible": infeasible,
    "undetermined": undetermined,
    "measured": measured,
    "estimate": estimate,
    "measure": measure,
}
