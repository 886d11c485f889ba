"""Network: the analysis of a converted network's backbone, for a drawing of it."""

from __future__ import annotations

import warnings

from ..analyze import analyze
from ..errors import EnforcementError, UnhandledOperatorWarning
from ..report.dependencies import Dependencies
from ..tasks.network import Network


def analyzed(net: Network) -> Dependencies:
    """The backbone as it was when it was converted, analysed again.

    A network keeps the plan but not the graph, which would keep a second model alive. The guards
    are off while the analysis runs: they are not part of the model.

    Raises:
        EnforcementError: the backbone has been changed since it was converted.
    """
    with net.unguarded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnhandledOperatorWarning)  # given by the conversion
        deps = analyze(net.backbone, list(net.examples))
    before = [(group.name, group.size) for group in net.call_plan.plan.groups]
    if before != [(group.name, group.size) for group in deps.groups]:
        raise EnforcementError(
            "the backbone has other groups than when it was converted",
            remedy="draw the network as convert() made it, or convert the changed model again",
        )
    return deps
