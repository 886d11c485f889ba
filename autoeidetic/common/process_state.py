"""Process state: every container that outlives a call, in one place.

A network keeps its own state on itself. The state here belongs to the process: it connects networks
with code that has no reference to them (an optimizer, a compiled graph, a forked child). Modules
use the names below; no other module of the package keeps such state.

``watched_pins``
    Why: the step of an optimizer must find the pins of the parameters that it has changed.
    Written by ``enforce.optimizer_steps.watch``, whenever a network derives its pins.
    An entry goes with its network (weak).

``optimizer_hooks``
    Why: the handles of the two hooks described below, so that they are registered exactly once.
    Written by ``enforce.optimizer_steps`` on import. Stays.

``converted_backbones``
    Why: ``convert`` refuses a model that a network already runs. Between some tasks no module of
    such a model is guarded, so nothing in the model itself shows it.
    Written by ``convert.convert``. An entry goes with its model (weak).

``networks_by_number``, ``network_numbers``
    Why: an operator in a compiled graph can hold a number but no network. No number is reused.
    Written by ``tasks.compiled.numbered``, for a new network or a copy of one.
    An entry goes with its network (weak); the counter stays.

``pass_lock_numbers``
    Why: a step that concerns several networks takes their locks in the order of these numbers, so
    that two such steps in two threads cannot wait for each other.
    Written by ``enforce.pass_lock.PassLock``, for a new lock. Stays.

``guarded_classes``
    Why: every class has one guarded subclass, so modules of one class still have one class when
    they are guarded, and no class is made again each time that guards are installed.
    Written by ``enforce.guard``, when the first module of a class is guarded. Stays: one entry for
    each class.

``reading_classes``
    Why: as for guarded classes, for layers of a column that read from earlier columns.
    Written by ``widen.readers``, when the first layer of a class becomes one. Stays.

``module_call_lock``
    Why: a capture replaces ``nn.Module.__call__`` while it runs, for all threads of the process, so
    that only one capture may run at a time. Modules of other models are called as before.
    Taken by ``capture.capture``. Stays.

``held_locks``
    Why: a forked child closes its copies of the descriptors of lock files, so that a worker that
    outlives a killed run does not keep the run's lock.
    Written by ``common.locks``. An entry goes when the lock is released; in a child all go at once.

``recipes``
    Why: a network is saved many times, and the search for the constructor of its model takes time.
    Written by ``checkpoint.rebuild.recipe``. Stays: one small dictionary for each architecture.

Hooks. The import of ``enforce.optimizer_steps``, hence of the package, registers two hooks in torch
that run at each step of every ``torch.optim.Optimizer`` of the process: ``before_step`` takes the
pass locks of the networks whose pinned tensors the optimizer holds, ``after_step`` puts their
pinned values back and releases the locks. Both return at once while ``watched_pins`` is empty.
``common.locks`` registers a function that runs in a forked child.

Not listed: registries, which only imports and decorators fill (rules of operators, scores,
routers), and cached results of pure functions (schemas of operators, files of a page).
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from torch import nn

#: ``enforce.pins.Pins`` of the networks that exist.
watched_pins: WeakSet[Any] = WeakSet()
#: Handles of ``before_step`` and ``after_step``.
optimizer_hooks: list[Any] = []
#: Models that are backbones of networks.
converted_backbones: WeakSet[nn.Module] = WeakSet()
#: ``tasks.network.Network`` by the number that compiled graphs know it by.
networks_by_number: WeakValueDictionary[int, Any] = WeakValueDictionary()
network_numbers = itertools.count(1)
pass_lock_numbers = itertools.count()
#: The guarded subclass of each class.
guarded_classes: dict[type, type] = {}
#: The subclass of each class of layers that reads from earlier columns.
reading_classes: dict[type, type] = {}
#: Held while ``nn.Module.__call__`` is replaced.
module_call_lock = threading.RLock()
#: Descriptors of the lock files that this process holds.
held_locks: set[int] = set()
#: By the hash of an architecture, how to build it.
recipes: dict[int, dict[str, Any]] = {}
