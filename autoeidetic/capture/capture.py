"""Capture: run the model once and write every ATen operator it calls into a ``torch.fx`` graph.

The run is concrete, so Python control flow is simply followed. ``meta`` tensors, which have shapes
but no data, take the place of parameters and inputs. What is computed from constants alone is
computed for real, because an index into a relative position table decides which unit sits where.
When the code looks at data (``.item()``, boolean masks), the run is repeated on real tensors.

The model itself stays as it is: tensors are recognised by identity when an operator receives
them. In-place writes become their functional twins, and writes through views are followed by the
strides of the view; a write to a tensor that existed before the run is recorded but not carried
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..common.inputs import CallInputs
from ..common.process_state import module_call_lock
from ..common.torch_modes import unsupported_tensor
from ..common.undisturbed import undisturbed
from ..errors import AutoeideticError, CaptureError, InputError, Place
from . import whole_operators
from .decisions import given_away
from .graph import Capture
from .recorder import Recorder

_SETS_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class _RunError(Exception):
    """A run of the model has failed; ``error`` is what it raised."""

    def __init__(self, way: str, error: Exception, place: Place, captured: Capture) -> None:
        super().__init__(f"the model does not run on {way} tensors")
        self.error = error
        self.place = place
        self.captured = captured


def capture(model: nn.Module, *inputs: CallInputs, real: bool = False) -> Capture:
    """Record calls of ``model`` in eval mode in one graph, leaving the model as it was.

    With ``real`` the run is on real tensors: every constant then has its values, also one that the
    code makes on the device of an input.

    Raises:
        CaptureError: the model runs neither on meta tensors nor on real ones.
    """
    _check_tensors(model)
    # meta first: no arithmetic, no memory, so a model with billions of parameters takes seconds;
    # and no value can be looked at by mistake
    try:
        return _run(model, inputs, "real" if real else "meta")
    except _RunError as first:
        # mostly code that looks at data, which meta tensors do not have
        if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
            raise _failure(model, first, None) from first.error
        try:
            return _run(model, inputs, "real")
        except _RunError as second:
            raise _failure(model, first, second) from second.error


def _check_tensors(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"'{name}' has no shape yet: the module that holds it is lazy",
                place=Place(module=name.rpartition(".")[0]),
                remedy="run the model once on real inputs before the analysis",
            )
        found = unsupported_tensor(tensor)
        if found is not None:
            raise InputError(
                f"'{name}' is {found.kind}, which cannot be analysed",
                place=Place(module=name.rpartition(".")[0]),
                remedy=found.remedy,
            )


def capture_function(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Capture:
    """Record a plain function, called with meta tensors."""
    recorder = Recorder(nn.Module(), "meta", capture_function.__code__)
    with torch.no_grad(), _DispatchMode(recorder), _FunctionMode(recorder):
        args, kwargs = recorder.placeholders((args, kwargs))
        output = function(*args, **kwargs)
    return recorder.finish([output])


def _failure(model: nn.Module, first: _RunError, second: _RunError | None) -> CaptureError:
    facts = [
        f"{type(model).__qualname__} cannot be run for analysis",
        _fact("on meta", first.error),
    ]
    remedy = (
        "check that model.eval()(example_inputs) runs as it is; pass example_inputs of the shape "
        "and type the model expects"
    )
    if second is None:
        remedy = "the model is on the meta device and its code looks at data: load it on the CPU"
    else:
        facts.append(_fact("on real tensors", second.error))
    last = second or first
    failure = CaptureError("\n  ".join(facts), place=last.place, remedy=remedy)
    failure.captured = last.captured
    failure.reason = first_line(last.error)
    return failure


def _fact(way: str, error: Exception) -> str:
    return f"{way}: {type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of an error; the others are most often advice."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def _run(model: nn.Module, inputs: Sequence[CallInputs], way: str) -> Capture:
    """Record all calls.

    Raises:
        AutoeideticError: the model does something that cannot be recorded.
        _RunError: the model raises anything.
    """
    # a new one for each attempt: a failed run leaves half a graph
    recorder = Recorder(model, way, _record.__code__)
    try:
        return recorder.finish([_record(recorder, model, each) for each in inputs])
    except AutoeideticError as error:
        error.captured = recorder.unfinished()
        raise
    except Exception as error:
        place = recorder.module_calls.place_of(error) or Place()
        raise _RunError(way, error, place, recorder.unfinished()) from error
    finally:
        recorder.module_calls.forget_failures()


def captured_part(error: BaseException | None) -> Capture | None:
    """The capture that was under way when this error, or one of its causes, was raised."""
    while error is not None:
        if isinstance(error, AutoeideticError) and isinstance(error.captured, Capture):
            return error.captured
        error = error.__cause__
    return None


def _record(recorder: Recorder, model: nn.Module, inputs: CallInputs) -> Any:
    with (
        module_call_lock,
        # autocast is off: it would add casts to the graph that are none of the model's
        undisturbed(
            model,
            evaluate=True,
            attributes=True,
            generators="all",
            gradients=False,
            autocast=("cpu", _device(model)),
        ),
        # the function mode sees a call first; operators that it lets pass reach the dispatch mode
        _module_calls(recorder),
        _DispatchMode(recorder),
        _FunctionMode(recorder),
    ):
        args, kwargs = recorder.placeholders((inputs.args, inputs.kwargs))
        with recorder.decisions.of_call(inputs.decisions):
            return model(*args, **kwargs)


def _device(model: nn.Module) -> str:
    kinds = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    return kinds.pop() if kinds else "cpu"


@contextmanager
def _module_calls(recorder: Recorder) -> Iterator[None]:
    """Route calls of the model's modules through the recorder, as ``torch.fx`` does."""
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        path = recorder.names.paths.get(id(module))
        if path is None:  # no module of this model
            return original(module, *args, **kwargs)
        return recorder.module_calls.run(path, original, module, args, kwargs)

    # Python looks __call__ up on the type, so a patch of single modules would have no effect
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


class _DispatchMode(TorchDispatchMode):
    """Gives the recorder every ATen operator."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.busy:  # an operator of the recorder itself
            return func(*args, **(kwargs or {}))
        return self.recorder.operator(func, args, kwargs or {})


class _FunctionMode(TorchFunctionMode):
    """Gives the recorder some operators whole: linear, convolution, norms, attention, recurrences.

    ATen splits them into a dozen smaller ones before the dispatch mode sees them.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # tolist(), numpy() and x.data = y reach no operator: only the function mode sees them
        for tensor in given_away(func, args, kwargs):
            self.recorder.leave_torch(func, tensor)
        if func == _SETS_DATA:
            self.recorder.check_data(*args)
        whole = whole_operators.WHOLE.get(func)
        bound = whole(*args, **kwargs) if whole is not None else None
        if bound is None:
            return func(*args, **kwargs)
        overload, arguments, *keywords = bound
        return self.recorder.operator(
            overload,
            arguments,
            keywords[0] if keywords else {},
            # real runs call the function itself; the operator is only what is written down
            whole=lambda: func(*args, **kwargs),
        )
