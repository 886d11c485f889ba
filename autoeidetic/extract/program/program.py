"""Program: some tasks of a network, or a smaller model, as an ordinary ``torch.fx.GraphModule``.

It consists of stock PyTorch operators and of tensors under the names that they have in the user's
model. Neither running nor unpickling one needs this package.
"""

from __future__ import annotations

import copy
import inspect
import keyword
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from ...common import files
from ...errors import InputError
from ...report.drawable import Drawable
from . import example as examples
from .modules import recorded, staged
from .report import ExtractReport, report_of

#: The key of ``program.meta`` under which everything about a program is kept, as JSON values.
KEY = "autoeidetic"
#: The key under which it is kept whether batch norms learn their statistics.
_LEARNS = "autoeidetic learns statistics"
_BATCH_NORM = inspect.signature(F.batch_norm)
_POSITIONAL = ("input", "running_mean", "running_var", "weight", "bias")


class Program(Drawable, fx.GraphModule):
    """A model as a graph of stock operators, without anything that it does not need.

    Everything that works on an ``nn.Module`` works on it: training, ``.to()``, ``torch.compile``,
    ``torch.export``. ``train()`` and ``eval()`` change nothing: it computes what the network does
    in eval mode, unless :meth:`learn_statistics` was called. A pickled program is a plain
    ``torch.fx.GraphModule``.
    """

    @classmethod
    def of(
        cls,
        attributes: Mapping[str, Tensor],
        graph: fx.Graph,
        report: ExtractReport,
        trainable: Collection[str],
        example: Sequence[Tensor] | Mapping[str, Tensor],
    ) -> Program:
        """Make a program of a graph and the tensors that its ``get_attr`` nodes name.

        Args:
            attributes: tensors by dotted names; they are copied. A tensor that has two names is one
                tensor of the program.
            graph: operators only; the program takes it over.
            report: available as ``program.report``.
            trainable: names of tensors that become parameters, if they are real or complex.
            example: an input for each placeholder, in their order or by name.
        """
        graph.lint()
        renamed = usable(str(node.target) for node in graph.find_nodes(op="get_attr"))
        for node in graph.find_nodes(op="get_attr"):
            node.target = renamed[str(node.target)]
        learned = {id(tensor) for name, tensor in attributes.items() if name in trainable}
        copies = {id(t): _copied(t, id(t) in learned) for t in attributes.values()}
        tensors = {new: copies[id(attributes[old])] for old, new in renamed.items()}
        program = cls(tensors, graph, class_name=cls.__name__)
        program.eval()
        inputs = [str(node.target) for node in graph.find_nodes(op="placeholder")]
        program.meta[KEY] = {
            "report": files.as_stored(report.to_dict()),
            "example": examples.described(inputs, example),
            "modules": recorded(graph.nodes, _usable),
        }
        return program

    @property
    def report(self) -> ExtractReport:
        """What the program costs, and how it was compared with its network."""
        return report_of(self.meta[KEY]["report"])

    def _summary(self) -> str:
        return str(self.report)

    def learn_statistics(self, on: bool = True) -> Program:
        """Let batch norms use and update the statistics of batches in train mode, as in the model.

        Without it they use the running statistics that they have, which suits few data or small
        batches. Copies keep the choice, files do not. Returns the program.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(),
            ...                       nn.LazyLinear(2))
            >>> x = torch.randn(4, 3, 6, 6)
            >>> _ = model.eval()(x)
            >>> program = autoeidetic.slim(model, 0.5, x).learn_statistics().train()
            >>> before = program.get_buffer("1.running_mean").clone()
            >>> _ = program(x)
            >>> torch.equal(before, program.get_buffer("1.running_mean"))
            False

        Raises:
            InputError: a batch norm takes the mean over all batches (``momentum=None``), which
                needs a count that programs do not have.
        """
        for node in self.graph.find_nodes(op="call_function", target=F.batch_norm) if on else ():
            given = _BATCH_NORM.bind(*node.args, **node.kwargs).arguments
            if given["running_mean"] is not None and given.get("momentum") == 0:
                raise InputError(
                    f"batch norm '{node.name}' has no momentum, so that it would not learn",
                    remedy="give the layer of the model a momentum, such as 0.1, and extract again",
                )
        self.meta[_LEARNS] = bool(on)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Program:
        """Set the mode; it matters only after :meth:`learn_statistics`."""
        super().train(mode)
        learns = mode and self.meta.get(_LEARNS, False)
        changed = False
        for node in self.graph.find_nodes(op="call_function", target=F.batch_norm):
            call = _BATCH_NORM.bind(*node.args, **node.kwargs)
            given = call.arguments
            if given["running_mean"] is not None and given.pop("training", False) != learns:
                node.args = tuple(given.pop(name, None) for name in _POSITIONAL)
                node.kwargs = {**given, "training": True} if learns else given
                changed = True
        if changed:
            self.recompile()
        return self

    def save(self, path: Any) -> None:
        """Write the program to a file, all or nothing; the ending tells the format.

        | ending | format | opened by |
        |---|---|---|
        | `.safetensors` | tensors and graph, no code | :func:`autoeidetic.load` |
        | `.pt2` | an exported program | `torch.export.load` |
        | `.onnx` | ONNX | any runtime of ONNX; writing needs `autoeidetic[deploy]` |

        Raises:
            InputError: the ending is none of these.
            CheckpointError: the file cannot be written, or cannot hold the program.
            MissingPackageError: ONNX needs ``pip install "autoeidetic[deploy]"``.
        """
        from ..files import save

        save(self._as_evaluated(), path)

    def _as_evaluated(self) -> Program:
        """The program, or a copy whose batch norms do not learn."""
        learns = self.training and self.meta.get(_LEARNS, False)
        return copy.deepcopy(self).learn_statistics(False) if learns else self

    @property
    def code(self) -> str:
        """The Python code of the program, as people would write it."""
        return readable(super().code)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        copied = super().__deepcopy__(memo)
        # GraphModule makes a class for each instance, and calls all of them GraphModule
        type(copied).__name__ = type(self).__name__
        assert isinstance(copied, Program)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # GraphModule traces its code anew, in which buffers are plain tensors: an operator of a
        # buffer and a size fails. Parameters are symbols, so all tensors are parameters there.
        if self._as_evaluated() is not self:
            return self._as_evaluated().__reduce__()
        make, (body, imports) = super().__reduce__()
        traced = _without_values(self)
        tensors = ("_parameters", "_buffers", "_modules")
        # the state is merged into that of the new module; GraphModule leaves meta behind
        state = {**{name: body[name] for name in tensors}, "meta": {KEY: self.meta[KEY]}}
        body = {**body, **{name: getattr(traced, name) for name in tensors}}
        return make, (body, imports), state


def inputs_of(program: Program) -> dict[str, Tensor]:
    """Example inputs where the program is and, if all its numbers are of one type, of that type."""
    tensors = [*program.parameters(), *program.buffers()]
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    made = examples.made(program.meta[KEY]["example"], program.report.dynamic_sizes())
    for name, tensor in made.items():
        kind = next(iter(kinds)) if len(kinds) == 1 and tensor.is_floating_point() else tensor.dtype
        made[name] = tensor.to(tensors[0].device if tensors else None, kind)
    return made


def in_modules(program: Program) -> nn.Module:
    """The tensors and operators of a program in the modules of the user's model."""
    return staged(program, program.meta[KEY]["modules"])


def readable(code: str) -> str:
    """The same code with public names, slices in brackets, and without the release of memory.

    >>> readable("y = torch._C._nn.gelu(x[(slice(None, None, None), slice(0, n, 2))]);  x = None")
    'y = torch.nn.functional.gelu(x[:, 0:n:2])'
    """
    code = re.sub(r";  (\w+ = )+None$", "", code, flags=re.MULTILINE)
    # functions that are written in C++ know only these names
    code = code.replace("torch._C._nn.", "torch.nn.functional.")
    code = code.replace("torch._C._linalg.linalg_", "torch.linalg.")
    return re.sub(r"(?<=\w)\[(\(?)(.*?)(\)?)\]", _brackets, code)


def _brackets(found: re.Match[str]) -> str:
    def short(part: re.Match[str]) -> str:
        start, stop, step = ("" if text == "None" else text for text in part.groups())
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"

    inside = re.sub(r"slice\(([\w-]+), ([\w-]+), ([\w-]+)\)", short, found[2] + found[3])
    # the brackets of a tuple go with it
    inside = inside.removesuffix(")") if found[1] else inside
    return f"[{inside.replace('Ellipsis', '...')}]"


def _without_values(program: nn.Module) -> nn.Module:
    """A module with an empty parameter for each tensor of a program."""
    made = nn.Module()
    named = [
        *program.named_parameters(remove_duplicate=False),
        *program.named_buffers(remove_duplicate=False),
    ]
    for name, _ in named:
        home, (*path, leaf) = made, name.split(".")
        for part in path:
            if part not in home._modules:
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        home.register_parameter(leaf, nn.Parameter(torch.empty(0)))
    return made


def _copied(tensor: Tensor, trainable: bool) -> Tensor:
    """A copy that shares no memory with the network; a parameter if it can be trained."""
    own = tensor.detach().clone()
    real = own.is_floating_point() or own.is_complex()
    return nn.Parameter(own) if trainable and real else own


def usable(names: Iterable[str]) -> dict[str, str]:
    """Dotted names as the code of a program can write them; most stay what they are.

    >>> usable(["layer1.0.weight", "report.weight", "head.class.bias"])
    {'layer1.0.weight': 'layer1.0.weight', 'report.weight': 'report_.weight',
     'head.class.bias': 'head.class_.bias'}
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        usable = _usable(name)
        while usable in found.values():
            usable += "_"
        found[name] = usable
    return found


def _usable(name: str) -> str:
    parts = enumerate(name.split("."))
    return ".".join(_part(part, _taken()[level == 0]) for level, part in parts)


@cache
def _taken() -> dict[bool, Collection[str]]:
    """Names of the program's own attributes, and of those of modules inside of it (False)."""
    # methods of modules would hide a tensor of the same name
    top = {*dir(Program), *vars(fx.GraphModule({}, fx.Graph()))}
    return {True: top, False: {*dir(nn.Module())}}


def _part(part: str, taken: Collection[str]) -> str:
    # names go into the program's code as they are: no quotation marks, no keywords
    part = re.sub(r"[^0-9A-Za-z_]", "_", part) or "_"
    return f"{part}_" if part in taken or keyword.iskeyword(part) else part
