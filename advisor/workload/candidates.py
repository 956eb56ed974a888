"""Which model a file is about. One candidate is taken, several are listed: never a silent choice. No torch at import.

Rules and their hit rates come from 107 public entry points: "the only class no other class uses" named the right one
in 48 of 54 files that have one; "the last class of the file" was wrong in 9 of 9 files with several.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload import huggingface
from advisor.workload.calls import find_calls
from advisor.workload.constructors import (
    Construction,
    default_construction,
    is_a,
    is_users,
    required_parameters,
    signature,
    template,
)
from advisor.workload.expressions import dotted_name, namespace, parse
from advisor.workload.failures import shown
from advisor.workload.importing import import_file, repository_root
from advisor.workload.parts import Part
from advisor.workload.spec import Guess
from advisor.workload.statements import Skipping

_LOSS_LIKE = re.compile(r"loss|criterion", re.IGNORECASE)
_ADVERSARIAL = re.compile(r"discriminator|critic", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """The user's imported file."""

    target: str  # as typed, for command lines in messages
    path: Path
    module_name: str
    names: Mapping[str, Any]
    skipped: tuple[str, ...] = ()  # statements left out of its import, and why

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace")


def named_model(text: str, file: UserFile, *, flag: str = "--model") -> Part:
    """`--model`: `Name`, `Name(...)`, `other.py:make` or a `config.json`."""
    if text.endswith(".json"):
        return huggingface.read_config(Path(text)).model
    if match := re.fullmatch(r"(\S+\.py):(.+)", text):
        file = open_file(_beside(Path(match[1]), file), target=match[1])
        return named_model(match[2], file, flag=flag)
    expression = parse(text, flag=flag, scope=namespace(file.names))
    if not dotted_name(text):
        return Part(function=expression, label=text.strip())
    try:
        value = expression()
    except (NameError, AttributeError) as error:
        left_out = f", whose lines {'; '.join(file.skipped)} were left out" if file.skipped else ""
        raise WorkloadError(f"{flag} {text}: {error} in {shown(file.path)}{left_out}", hint=_choices(file)) from None
    return _model_of(value, text, file)


def _model_of(value: Any, text: str, file: UserFile) -> Part:
    import torch

    if isinstance(value, torch.nn.Module):  # built while the file was imported: train copies of it
        return Part(function=lambda: copy.deepcopy(value), label=text)
    if not callable(value):
        raise WorkloadError(f"--model {text} is a {type(value).__name__}, not a model or a function that builds one")
    construction = default_construction(value, file.names)
    if construction is None:
        raise _needs_arguments(value, file)
    return Part(function=construction.call, label=construction.label, variants=construction.variants)


def open_file(path: Path, *, target: str, skip_failing: bool = False) -> UserFile:
    skipping = Skipping() if skip_failing else None
    module = import_file(path, skipping=skipping)
    skipped = tuple(skipping.skipped) if skipping else ()
    return UserFile(target=target, path=path, module_name=module.__name__, names=vars(module), skipped=skipped)


def _beside(path: Path, file: UserFile) -> Path:
    beside = file.path.parent / path
    if not path.is_file() and not beside.is_file():
        raise WorkloadError(f"--model {path}: no such file here or beside {shown(file.path)}")
    return path if path.is_file() else beside


def found_model(file: UserFile) -> Part:
    """The one model of a file that says nothing; an error that lists the choices where there is not exactly one."""
    roots = root_classes(file)
    factories = zero_argument_factories(file)
    if len(roots) > 1:
        raise WorkloadError(
            f"{shown(file.path)} defines {len(roots)} models, and nothing says which one is trained: "
            + ", ".join(root.__name__ for root in roots),
            hint=_choices(file),
        )
    construction = default_construction(roots[0], file.names) if roots else None
    if construction is not None:
        return _guessed(construction, "the only model class that no other class of the file uses", file)
    if len(factories) == 1:
        made = Construction(call=factories[0], label=f"{factories[0].__name__}()")
        return _guessed(made, "the only function without required arguments that returns a model", file)
    if factories:
        names = ", ".join(f"{factory.__name__}()" for factory in factories)
        raise WorkloadError(
            f"{shown(file.path)} has {len(factories)} functions that build a model: {names}", hint=_choices(file)
        )
    if roots:
        raise _needs_arguments(roots[0], file)
    raise _no_model(file)


def _no_model(file: UserFile) -> WorkloadError:
    import torch

    message = f"{shown(file.path)} defines no nn.Module and no function that builds one"
    if file.skipped:
        message += f"; left out: {'; '.join(file.skipped)}"
    imported = [
        value
        for value in file.names.values()
        if isinstance(value, type)
        and issubclass(value, torch.nn.Module)
        and value.__module__ != file.module_name
        and is_users(value)
    ]
    if imported:
        lines = [f"  {command(file.target, template(value, file.names))}" for value in imported]
        return WorkloadError(f"{message}; it imports some", hint="\n".join(["name the one that is trained:", *lines]))
    return WorkloadError(
        message,
        hint=f"name what builds it: {command(file.target, 'build_the_model(...)')}, or write build_model() in the file",
    )


def _guessed(construction: Construction, why: str, file: UserFile) -> Part:
    guess = Guess(what="model", chosen=construction.label, why=why, flag="--model")

    def build() -> Any:
        try:
            return construction.call()
        except Exception as error:
            edit = re.sub(r"\(\)$", "(...)", construction.label)
            error.add_note(f"if this is not how the model is built: {command(file.target, edit)}")
            for call in find_calls(construction.label.partition("(")[0], repository_root(file.path.resolve())):
                error.add_note(f"  {call}")
            raise

    return Part(function=build, label=construction.label, guess=guess, variants=construction.variants)


def root_classes(file: UserFile) -> list[type[Any]]:
    """Module classes the file defines and no other class of it uses, loss-like names dropped, the best kind alone."""
    import torch

    classes = {
        value.__name__: value
        for value in file.names.values()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == file.module_name
    }
    classes = {name: value for name, value in classes.items() if not _LOSS_LIKE.search(name)}
    used = _used_classes(ast.parse(file.source), frozenset(classes))
    roots = [value for name, value in classes.items() if name not in used] or list(classes.values())
    for kind in ("LightningModule", "PreTrainedModel"):
        if preferred := [root for root in roots if is_a(root, kind)]:
            return preferred
    # Without a constructor of its own a class holds no parameters: post-processing, most often.
    return [root for root in roots if root.__init__ is not torch.nn.Module.__init__] or roots


def _used_classes(tree: ast.Module, classes: frozenset[str]) -> set[str]:
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {node.name}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
            # ResNet(BasicBlock, [3, 3, 3]): an ingredient of another model
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            used |= {n.id for argument in arguments for n in ast.walk(argument) if isinstance(n, ast.Name)}
    return used & classes


def zero_argument_factories(file: UserFile) -> list[Callable[[], Any]]:
    """Public functions of the file that need no argument and, by their source, return a module."""
    functions = {node.name: node for node in ast.parse(file.source).body if isinstance(node, ast.FunctionDef)}
    return [
        value
        for name, value in file.names.items()
        if name in functions
        and not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == file.module_name
        and not required_parameters(value)
        and _returns_module(name, functions, file.names)
    ]


def _returns_module(name: str, functions: Mapping[str, ast.FunctionDef], names: Mapping[str, Any]) -> bool:
    """By its annotation, or by what it returns: a class called, or another function of the file that returns one."""
    function = functions[name]
    if function.returns is not None and _is_module_class(function.returns, names):
        return True
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    assigned = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    others = {key: value for key, value in functions.items() if key != name}
    for value in (assigned.get(node.id, node) if isinstance(node, ast.Name) else node for node in returned):
        if not isinstance(value, ast.Call):
            continue
        if isinstance(value.func, ast.Name) and value.func.id in others:
            if _returns_module(value.func.id, others, names):
                return True
        elif _is_module_class(value.func, names):
            return True
    return False


def _is_module_class(node: ast.expr, names: Mapping[str, Any]) -> bool:
    import torch

    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    for attribute in reversed(path):
        value = getattr(value, attribute, None)
    return isinstance(value, type) and issubclass(value, torch.nn.Module)


def _needs_arguments(factory: Callable[..., Any], file: UserFile) -> WorkloadError:
    missing = ", ".join(parameter.name for parameter in required_parameters(factory))
    lines = [f"give them: {command(file.target, template(factory, file.names))}"]
    if calls := find_calls(factory.__name__, repository_root(file.path.resolve())):
        lines += ["calls found in the repository:", *(f"  {call}" for call in calls)]
    lines += _class_methods(factory)
    return WorkloadError(
        f"{signature(factory)} in {shown(file.path)} needs arguments only you know: {missing}", hint="\n".join(lines)
    )


def _class_methods(factory: Callable[..., Any]) -> list[str]:
    """Methods of the class that may build it, or its configuration: `from_name(...)`, `get_default_config()`."""
    lines = []
    for name, value in vars(factory).items() if isinstance(factory, type) else ():
        if not isinstance(value, classmethod | staticmethod) or name.startswith("_"):
            continue
        method = getattr(factory, name)
        if "config" in name and not required_parameters(method):
            change = f"(lambda c: [setattr(c, 'FIELD', VALUE), c][-1])({factory.__name__}.{name}())"
            lines.append(f'or: --model "{factory.__name__}({change})" with the fields {_fields(method)}')
        elif name.startswith(("from_", "build", "create", "make")):
            lines.append(f"or: --model '{factory.__name__}.{signature(method)}'")
    return lines


def _fields(default_config: Callable[[], Any]) -> str:
    try:
        return ", ".join(f"{name}={value!r}" for name, value in vars(default_config()).items())
    except Exception:  # it is only for a hint
        return "it has"


def _choices(file: UserFile) -> str | None:
    roots = root_classes(file)
    choices: list[Callable[..., Any]] = [*roots, *zero_argument_factories(file)]
    if not choices:
        return None
    made = [default_construction(choice, file.names) for choice in choices]
    texts = [m.label if m else template(choice, file.names) for m, choice in zip(made, choices, strict=True)]
    lines = [f"  {command(file.target, text)}" for text in texts]
    adversaries = [root for root in roots if _ADVERSARIAL.search(root.__name__)]
    generators = [root for root in roots if root not in adversaries]
    if adversaries and generators:
        pair = ", ".join(template(root, file.names) for root in (generators[0], adversaries[0]))
        lines.append("or, where they train together, a step of both with one loss:")
        built = command(file.target, f"nn.ModuleList([{pair}])")
        lines.append(f"  {built} --loss 'model[1](model[0](*batch)).mean()'")
    needing = [choice for m, choice in zip(made, choices, strict=True) if m is None]
    root = repository_root(file.path.resolve())
    if calls := [call for choice in needing for call in find_calls(choice.__name__, root)[:2]]:
        lines += ["calls found in the repository:", *(f"  {call}" for call in calls)]
    return "\n".join(["choose one:", *lines])


def command(target: str, model: str) -> str:
    return f"advisor assess {shlex.quote(target)} --model {shlex.quote(model)}"
