"""What ``analyze`` returns (first form)."""
from .couple import Coupling


class Dependencies:
    def __init__(self, coupling: Coupling) -> None:
        self._coupling = coupling
        self.plan = coupling.plan
        self.capture = coupling.propagation.capture

    @property
    def values(self):
        from .propagate import tags_of
        p = self._coupling.propagation
        out = {}
        for node in p.nodes:
            t = tags_of(p, node) if node in p.values else None
            if t is not None:
                out[node.name] = self._coupling.classes(t)
        return out
