"""Plug-ins: one module of a folder defines one object, whose name is the file's name. No list to keep."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TypeVar

T = TypeVar("T")


def discover(package: str, attribute: str, protocol: type[T]) -> dict[str, T]:
    """The object called `attribute` of each module in `package`, by name, in name order.

    Skips `base` and `_private` modules. An import error is not swallowed; a module without such an object, an object
    that lacks a member of `protocol` or whose `name` is not the file's name is a bug and raises `TypeError`.
    """
    found: dict[str, T] = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        if name == "base" or name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{name}")
        plugin = getattr(module, attribute, None)
        missing = sorted(member for member in _members(protocol) if not hasattr(plugin, member))
        if plugin is None:
            raise TypeError(f"{module.__name__} defines no {attribute}")
        if missing:
            raise TypeError(f"{module.__name__}.{attribute} is no {protocol.__name__}: it lacks {', '.join(missing)}")
        if plugin.name != name:
            raise TypeError(f"{module.__name__}.{attribute}.name is {plugin.name!r}, not the file's name {name!r}")
        found[name] = plugin
    return found


def _members(protocol: type) -> set[str]:
    """Public attributes and methods a protocol asks for (`typing.get_protocol_members` is Python 3.13)."""
    return {
        member
        for base in protocol.__mro__
        for member in (*vars(base), *inspect.get_annotations(base))
        if not member.startswith("_")
    }
