"""The flags that commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        show_default=False,
        help="model.py, model.py:Name, package.module:Name, a Hugging Face config.json or its folder, or timm:NAME",
    ),
]

Model = Annotated[
    str | None, typer.Option("--model", metavar="EXPR", help="Name, Name(...), other.py:make or a config.json")
]
Batch = Annotated[str | None, typer.Option("--batch", metavar="EXPR", help="one batch; B is the micro-batch size")]
Loss = Annotated[str | None, typer.Option("--loss", metavar="EXPR", help="ce, mse, bce, nll, l1 or an expression")]
Optimizer = Annotated[str | None, typer.Option("--optimizer", metavar="EXPR", help="adamw, sgd, ... or an expression")]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="FORM", help="one input tensor, as f32:3x224x224 or i64[0,50257):1024; repeatable"),
]
TargetTensor = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="FORM", help="one target tensor, written like --input; repeatable"),
]
Call = Annotated[str | None, typer.Option("--call", metavar="EXPR", help="used in place of model(*batch)")]
SkipFailing = Annotated[
    bool,
    typer.Option("--skip-failing-statements", help="of the file's top level, and loops and calls there that may train"),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="the interpreter that runs the file, as .venv/bin/python; by default this one"
    ),
]

Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="a profile; this machine's own by default")
]
DeviceMemory = Annotated[
    str | None, typer.Option("--device-memory", metavar="SIZE", help="a device known by its memory alone, as 11019MiB")
]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="a profile of nodes that can be had")]
MaxDevices = Annotated[str | None, typer.Option("--max-devices", metavar="N", help="largest device count to look at")]
MicroBatch = Annotated[str | None, typer.Option("--micro-batch", metavar="N", help="samples per forward and backward")]
GlobalBatch = Annotated[
    str | None, typer.Option("--global-batch", metavar="N", help="samples per optimizer step; held")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="fixed as part of the job, as precision=amp-bf16; repeatable"),
]
Plan = Annotated[
    str | None, typer.Option("--plan", metavar="PLAN", help="how ranks are arranged, as ddp:4, fsdp2:8 or hsdp:2x8")
]

Samples = Annotated[str | None, typer.Option("--samples", metavar="COUNT", help="samples to train on in all, as 40M")]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="COUNT", help="tokens to train on in all, as 15B")]
Steps = Annotated[str | None, typer.Option("--steps", metavar="COUNT", help="optimizer steps in all")]
Deadline = Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="time to finish in, as 5d or 36h")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="MONEY", help="money to finish for, as '5000 USD'")]
Price = Annotated[
    str | None, typer.Option("--price", metavar="PRICE", help="of one device, as '2.49 USD/h'; over the profile's")
]
LearningRate = Annotated[
    str | None, typer.Option("--lr", metavar="RATE", help="learning rate now; over the optimizer's")
]
SequenceLengths = Annotated[
    str | None,
    typer.Option(
        "--sequence-lengths",
        metavar="X",
        help="how full rows are, as 0.43, or a file of lengths in tokens: packing is tried",
    ),
]
FineTune = Annotated[bool, typer.Option("--fine-tune", help="trained weights are adapted: LoRA and QLoRA make sense")]

NoMeasure = Annotated[bool, typer.Option("--no-measure", help="predict only, even on this machine's own device")]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", metavar="TIME", help="for each thing the file is asked, as 5min")
]
MemoryLimit = Annotated[str | None, typer.Option("--memory-limit", metavar="SIZE", help="for the file's own process")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="settings; by default the nearest advisor.toml or pyproject.toml"),
]
FormatName = Annotated[
    str | None,
    typer.Option("--format", "-f", metavar="NAME", help="terminal, markdown or json; by default the output's suffix"),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="write there; whole or not at all")]
Gate = Annotated[Path | None, typer.Option("--gate", metavar="POLICY", help="a policy file: exit 1 if it is not met")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress on standard error")]
