"""How a class or a function can be called without asking the user: no arguments, or one all-default configuration."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from advisor.workload.failures import Origin, origin
from advisor.workload.generate_variants import config_variants

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONFIG_WORDS = ("config", "args", "params", "settings", "options")
_CONFIG_PARAMETERS = ("config", "configs", "configuration", "conf", "cfg", "args", "params", "hparams", "opt")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """A call that needs nothing from the user."""

    call: Callable[[], Any]
    label: str  # "GPT(GPTConfig())"
    variants: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)  # from a smaller configuration


def default_construction(factory: Callable[..., Any], names: Mapping[str, Any]) -> Construction | None:
    """`Name()`, or `Name(Config())` with the configuration its annotation names or the only one around; else None."""
    required = required_parameters(factory)
    name = factory.__name__
    if not required:
        return Construction(call=factory, label=f"{name}()")
    if len(required) > 1:
        return None
    config = config_class(factory, required[0], names)
    if config is None or required_parameters(config):
        return None
    return Construction(
        call=lambda: factory(config()),
        label=f"{name}({config.__name__}())",
        variants=config_variants(config(), factory),
    )


def required_parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in parameters(factory)
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC
    ]


def parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # built in C without a signature
        return []


def config_class(
    factory: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any]
) -> type[Any] | None:
    """The configuration class a parameter takes: its annotation, or the only configuration class around."""
    annotated = _annotated_class(factory, parameter, names)
    if annotated is not None:
        return annotated if _is_config(annotated) else None
    if parameter.annotation is not parameter.empty or parameter.name not in _CONFIG_PARAMETERS:
        return None
    around = {value for value in names.values() if _is_config(value) and is_users(value)}
    return around.pop() if len(around) == 1 else None


def _annotated_class(
    factory: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any]
) -> type[Any] | None:
    function: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        hint = typing.get_type_hints(function).get(parameter.name)
    except Exception:  # an annotation of another parameter that can't be evaluated here
        hint = parameter.annotation
    if isinstance(hint, str):
        hint = names.get(hint)
    return hint if isinstance(hint, type) else None


def _is_config(value: object) -> bool:
    if not isinstance(value, type):
        return False
    named = any(word in value.__name__.lower() for word in _CONFIG_WORDS)
    return (dataclasses.is_dataclass(value) or named) and not hasattr(value, "forward")


def is_users(value: type[Any]) -> bool:
    try:
        return origin(inspect.getfile(value)) is Origin.USER
    except (TypeError, OSError):  # built in, or its module is gone
        return False


def template(factory: Callable[..., Any], names: Mapping[str, Any]) -> str:
    """`UNet(n_channels=..., n_classes=...)`, and `TRM(TRMConfig(vocab_size=...))` where a configuration is asked."""
    required = required_parameters(factory)
    if len(required) == 1 and (config := config_class(factory, required[0], names)):
        return f"{factory.__name__}({_call(config)})"
    return _call(factory)


def _call(factory: Callable[..., Any]) -> str:
    arguments = ", ".join(
        "..." if parameter.kind is parameter.POSITIONAL_ONLY else f"{parameter.name}=..."
        for parameter in required_parameters(factory)
    )
    return f"{factory.__name__}({arguments})"


def signature(factory: Callable[..., Any]) -> str:
    """`UNet(n_channels, n_classes, bilinear=False)`."""
    return factory.__name__ + bare_signature(factory)


def bare_signature(function: Callable[..., Any]) -> str:
    """`(n_channels, n_classes, bilinear=False)`: without annotations."""
    shown = (str(parameter.replace(annotation=parameter.empty)) for parameter in parameters(function))
    return f"({', '.join(shown)})"


def is_a(kind: type[Any], name: str) -> bool:
    """Whether a class of that name is among its bases: libraries need not be installed to be recognised."""
    return any(base.__name__ == name for base in kind.__mro__)
