"""Does this training job need a cluster, and if so, which setup?

    import advisor
    report = advisor.assess("model.py", device="a100-sxm4-40gb", cluster="dgx-a100", samples=40e6)

Names are imported when they are first used, so that `import advisor` costs nothing and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from advisor.version import __version__

if TYPE_CHECKING:
    from advisor.api import assess, estimate, measure
    from advisor.errors import AdvisorError
    from advisor.report.model import Report
    from advisor.workload.spec import Workload

_EXPORTS = {
    "AdvisorError": "advisor.errors",
    "Report": "advisor.report.model",
    "Workload": "advisor.workload.spec",
    "assess": "advisor.api",
    "estimate": "advisor.api",
    "measure": "advisor.api",
}

__all__ = ["AdvisorError", "Report", "Workload", "__version__", "assess", "estimate", "measure"]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
