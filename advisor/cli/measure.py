"""`advisor measure`: one exact configuration, run on this machine."""

from __future__ import annotations

import typer

from advisor.cli import flags


def measure(
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
    micro_batch: flags.MicroBatch = None,
    global_batch: flags.GlobalBatch = None,
    option: flags.Options = None,
    time_limit: flags.TimeLimit = None,
    memory_limit: flags.MemoryLimit = None,
    config: flags.Config = None,
    format: flags.FormatName = None,
    output: flags.Output = None,
    quiet: flags.Quiet = False,
) -> int:
    """Run one exact configuration on this machine.

    In a guarded child process, on the accelerator if there is one. Running out of memory is a result, not an error.
    """
    from advisor import analysis
    from advisor.cli import asking

    asking.answer(analysis.measure_session, context.params, target=workload)
    return 0
