"""`advisor estimate`: one exact configuration, predicted."""

from __future__ import annotations

import typer

from advisor.cli import flags


def estimate(
    context: typer.Context,
    workload: flags.Target,
    model: flags.Model = None,
    batch: flags.Batch = None,
    loss: flags.Loss = None,
    optimizer: flags.Optimizer = None,
    input: flags.Input = None,
    target: flags.TargetTensor = None,
    call: flags.Call = None,
    skip_failing_statements: flags.SkipFailing = False,
    python: flags.Python = None,
    device: flags.Device = None,
    device_memory: flags.DeviceMemory = None,
    cluster: flags.Cluster = None,
    plan: flags.Plan = None,
    micro_batch: flags.MicroBatch = None,
    global_batch: flags.GlobalBatch = None,
    samples: flags.Samples = None,
    tokens: flags.Tokens = None,
    steps: flags.Steps = None,
    sequence_lengths: flags.SequenceLengths = None,
    price: flags.Price = None,
    option: flags.Options = None,
    time_limit: flags.TimeLimit = None,
    memory_limit: flags.MemoryLimit = None,
    config: flags.Config = None,
    format: flags.FormatName = None,
    output: flags.Output = None,
    quiet: flags.Quiet = False,
) -> int:
    """Predict one exact configuration: memory, step time.

    On a device, or with --plan on one rank of many.
    """
    from advisor import analysis
    from advisor.cli import asking

    asking.answer(analysis.estimate_session, context.params, target=workload)
    return 0
