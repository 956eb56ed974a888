"""`advisor assess`: the whole advice."""

from __future__ import annotations

import typer

from advisor.cli import flags


def assess(
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
    max_devices: flags.MaxDevices = None,
    micro_batch: flags.MicroBatch = None,
    global_batch: flags.GlobalBatch = None,
    samples: flags.Samples = None,
    tokens: flags.Tokens = None,
    steps: flags.Steps = None,
    sequence_lengths: flags.SequenceLengths = None,
    deadline: flags.Deadline = None,
    budget: flags.Budget = None,
    price: flags.Price = None,
    lr: flags.LearningRate = None,
    fine_tune: flags.FineTune = False,
    option: flags.Options = None,
    no_measure: flags.NoMeasure = False,
    time_limit: flags.TimeLimit = None,
    memory_limit: flags.MemoryLimit = None,
    config: flags.Config = None,
    format: flags.FormatName = None,
    output: flags.Output = None,
    gate: flags.Gate = None,
    quiet: flags.Quiet = False,
) -> int:
    """Does this training job need a cluster, and if so, which setup?

    Exits 0 for any verdict it reaches, 1 only under --gate, 2 when the question could not be answered.
    """
    from advisor import analysis
    from advisor.cli import asking
    from advisor.gate import evaluate, load_policy

    policy = None if gate is None else load_policy(gate)
    report = asking.answer(analysis.assess_session, context.params, target=workload)
    if policy is None:
        return 0
    from advisor.cli.gate import print_checks

    result = evaluate(report, policy)
    print_checks(result, to_stderr=True)
    return result.exit_code
