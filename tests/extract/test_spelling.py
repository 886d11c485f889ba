"""Spellings: every row of the table against the ATen call that it replaces, bit for bit."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx

from autoeidetic.extract.spelling import Call, overload_of, rows, spelled, spelling, table


class Given(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(*args: Any, **kwargs: Any) -> Given:
    return Given(args, kwargs)


def normal(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


A, B = normal(2, 3, 4), normal(2, 3, 4) * 2 + 0.1
IMAGE, VIDEO = normal(2, 4, 8, 8), normal(2, 4, 4, 6, 6)
MASK = A > 0
VECTOR, MATRIX = normal(4), normal(4, 4)
INDEX = torch.tensor([2, 0, 1])
CONV = {"stride": [2], "padding": [1], "dilation": [2], "groups": 2}
TRANSPOSED = {"stride": [2], "padding": [1], "output_padding": [1], "groups": 2, "dilation": [2]}
POOL = {"stride": [2], "padding": [1], "ceil_mode": True}


def times(options: dict[str, Any], dimensions: int) -> dict[str, Any]:
    """Options of a window for a number of dimensions."""
    return {k: v * dimensions if isinstance(v, list) else v for k, v in options.items()}


def convolutions() -> dict[str, list[Given]]:
    found = {}
    for n in (1, 2, 3):
        x, w, t = normal(2, 4, *[6] * n), normal(6, 2, *[3] * n), normal(4, 3, *[3] * n)
        plain = normal(6, 4, *[3] * n)
        options = times(CONV, n)
        found[f"conv{n}d.default"] = [
            call(x, w, normal(6), **options),
            call(x, plain, None, [1] * n, [0] * n, [1] * n, 1),
            call(x, plain),
        ]
        same = {**options, "stride": [1] * n, "padding": "same"}
        found[f"conv{n}d.padding"] = [
            call(x, w, **same),
            call(x, w, **{**options, "padding": "valid", "dilation": [1] * n}),
        ]
        kind = "default" if n == 1 else "input"
        found[f"conv_transpose{n}d.{kind}"] = [
            call(x, t, normal(6), **times(TRANSPOSED, n)),
            call(x, t),
        ]
    return found


def pools() -> dict[str, list[Given]]:
    found = {}
    for n, x in ((1, A), (2, IMAGE), (3, VIDEO)):
        options = times(POOL, n)
        maximum = [
            call(x, [2] * n),
            call(x, [3] * n, **options),
            call(x, [2] * n, **times({"stride": [1], "dilation": [2]}, n)),
        ]
        found[f"max_pool{n}d.default"] = maximum
        average = [call(x, [2] * n), call(x, [3] * n, **options, count_include_pad=False)]
        if n > 1:
            found[f"max_pool{n}d_with_indices.default"] = maximum
            average.append(call(x, [2] * n, divisor_override=3))
        found[f"avg_pool{n}d.default"] = average
        found[f"adaptive_avg_pool{n}d.default"] = [call(x, [2] * n), call(x, [1] * n)]
        found[f"upsample_nearest{n}d.default"] = [call(x, [9] * n)]
        vec = [call(x, [9] * n, None), call(x, None, [2.5] * n)]
        found[f"upsample_nearest{n}d.vec"] = vec
    for name in ("bilinear2d", "bicubic2d"):
        found[f"upsample_{name}.default"] = [call(IMAGE, [9, 5], flag) for flag in (True, False)]
        found[f"upsample_{name}.vec"] = [
            call(IMAGE, [9, 5], True, None),
            call(IMAGE, None, False, [2.0, 1.5]),
        ]
    found["adaptive_max_pool2d.default"] = [call(IMAGE, [2, 3])]
    return found


CASES: dict[str, list[Given]] = {
    **{f"{name}.default": [call(A)] for name in rows.POINTWISE.split()},
    **{
        pair.split()[0]: [call(A, 1.5) if "Scalar" in pair else call(A, B)]
        for pair in rows.PYTHON.strip().replace("\n", "  ").split("  ")
    },
    **convolutions(),
    **pools(),
    "logical_not.default": [call(MASK)],
    "add.Tensor": [call(A, B), call(A, 2), call(A, B, alpha=1)],
    "linear.default": [call(A, normal(5, 4), normal(5)), call(A, normal(5, 4))],
    "batch_norm.default": [
        call(IMAGE, VECTOR, VECTOR + 1, VECTOR, VECTOR.abs(), False, 0.1, 1e-5, False),
        call(IMAGE, None, None, VECTOR, VECTOR.abs(), False, 0.3, 1e-2, True),
    ],
    "layer_norm.default": [
        call(A, [4], VECTOR, VECTOR + 1, 1e-5, False),
        call(A, [3, 4], eps=1e-2),
        call(A, [4], None, VECTOR),
    ],
    "group_norm.default": [call(IMAGE, 2, VECTOR, VECTOR, 1e-5, False), call(IMAGE, 2, eps=1e-2)],
    "rms_norm.default": [call(A, [4], VECTOR), call(A, [4], None, 1e-2)],
    "embedding.default": [call(MATRIX, INDEX), call(MATRIX, INDEX, 0, True, True)],
    "dropout.default": [call(A, 0.1, False), call(A, 1.0, True)],
    "scaled_dot_product_attention.default": [
        call(A, B, A),
        call(A, B, A, None, 0.0, True, scale=0.3),
        call(A, B, A, attn_mask=MASK[..., :3]),
        call(A, B, A, dropout_p=1.0),
        call(normal(1, 4, 3, 8), normal(1, 2, 3, 8), normal(1, 2, 3, 8), enable_gqa=True),
    ],
    "gelu.default": [call(A), call(A, approximate="tanh")],
    "elu.default": [call(A), call(A, 0.3)],
    "celu.default": [call(A), call(A, 0.3)],
    "glu.default": [call(A), call(A.transpose(1, 2), 1)],
    "hardtanh.default": [call(A), call(A, -0.5, 0.3)],
    "leaky_relu.default": [call(A), call(A, 0.3)],
    "softplus.default": [call(A), call(A, 2, 0.5)],
    "hardshrink.default": [call(A), call(A, 0.1)],
    "softshrink.default": [call(A), call(A, 0.1)],
    "threshold.default": [call(A, 0.1, 7.0)],
    "prelu.default": [call(A, normal(3))],
    **{f"{name}.default": [call(A)] for name in "silu mish relu6 hardsigmoid hardswish".split()},
    **{f"{name}.default": [call(A)] for name in "log_sigmoid neg squeeze".split()},
    "softmax.int": [call(A, 1), call(A, -1, torch.float64)],
    "log_softmax.int": [call(A, 1), call(A, -1, torch.float64)],
    "_softmax.default": [call(A, -1, False)],
    "_log_softmax.default": [call(A, -1, False)],
    "matmul.default": [call(A, MATRIX), call(A, B.transpose(1, 2))],
    "mm.default": [call(MATRIX, normal(4, 3))],
    "bmm.default": [call(A, B.transpose(1, 2))],
    "mv.default": [call(MATRIX, VECTOR)],
    "addmm.default": [call(VECTOR, MATRIX, MATRIX), call(VECTOR, MATRIX, MATRIX, beta=2, alpha=3)],
    "baddbmm.default": [
        call(MATRIX[:3, :3], A, B.transpose(1, 2)),
        call(MATRIX[:3, :3], A, B.transpose(1, 2), beta=2, alpha=3),
    ],
    "rsub.Tensor": [call(A, B)],
    "rsub.Scalar": [call(A, 1)],
    "pow.Tensor_Scalar": [call(B.abs(), 0.75), call(A, 2)],
    "pow.Tensor_Tensor": [call(A.abs(), B)],
    "pow.Scalar": [call(2.0, A)],
    "remainder.Tensor": [call(A, B)],
    "remainder.Scalar": [call(A, 0.3)],
    "floor_divide.default": [call(A, B)],
    "maximum.default": [call(A, B)],
    "minimum.default": [call(A, B)],
    "clamp.default": [call(A, None, 0.5), call(A, -0.2, 0.5), call(A, -0.2)],
    "clamp_min.default": [call(A, 0.1)],
    "clamp_max.default": [call(A, 0.1)],
    "where.self": [call(MASK, A, B)],
    "addcmul.default": [call(A, A, B), call(A, A, B, value=2)],
    "addcdiv.default": [call(A, A, B), call(A, A, B, value=2)],
    "lerp.Scalar": [call(A, B, 0.3)],
    "lerp.Tensor": [call(A, B, A)],
    "logical_and.default": [call(MASK, ~MASK)],
    "logical_or.default": [call(MASK, ~MASK)],
    "bitwise_and.Tensor": [call(INDEX, INDEX + 1)],
    "bitwise_or.Tensor": [call(INDEX, INDEX + 1)],
    "masked_fill.Scalar": [call(A, MASK, float("-inf"))],
    "masked_fill.Tensor": [call(A, MASK, torch.tensor(2.0))],
    "mean.default": [call(A), call(A, dtype=torch.float64)],
    "mean.dim": [call(A, [1, 2]), call(A, [-1], True, dtype=torch.float64), call(A, None)],
    "sum.default": [call(A), call(A, dtype=torch.float64)],
    "sum.dim_IntList": [call(A, [1, 2]), call(A, [-1], True, dtype=torch.float64), call(A, None)],
    "var.correction": [call(A, [1]), call(A, [1], correction=0, keepdim=True), call(A)],
    "std.correction": [call(A, [1]), call(A, [1], correction=0, keepdim=True), call(A)],
    "amax.default": [call(A), call(A, [1]), call(A, [1, 2], True)],
    "amin.default": [call(A), call(A, [1]), call(A, [1, 2], True)],
    "argmax.default": [call(A), call(A, 1), call(A, 1, True)],
    "argmin.default": [call(A), call(A, 1), call(A, 1, True)],
    "cumsum.default": [call(A, 1), call(A, 1, dtype=torch.float64)],
    "logsumexp.default": [call(A, [1]), call(A, [1], True)],
    "linalg_vector_norm.default": [
        call(A),
        call(A, 1.0, [-1], True, dtype=torch.float64),
        call(A, 2.0, [-1]),
    ],
    "max.dim": [call(A, 1), call(A, 1, True)],
    "min.dim": [call(A, 1), call(A, 1, True)],
    "topk.default": [call(A, 2), call(A, 2, 1, False, False)],
    "sort.default": [call(A), call(A, 1, True)],
    "constant_pad_nd.default": [call(A, [1, 2]), call(A, [1, 2, 0, 1], 0.5)],
    "pad.default": [call(A, [1, 2]), call(A, [1, 2], "reflect"), call(A, [1, 2], "constant", 3.0)],
    "reflection_pad1d.default": [call(A, [1, 2])],
    "reflection_pad2d.default": [call(IMAGE, [1, 2, 0, 1])],
    "replication_pad1d.default": [call(A, [1, 2])],
    "replication_pad2d.default": [call(IMAGE, [1, 2, 0, 1])],
    "pixel_shuffle.default": [call(IMAGE, 2)],
    "pixel_unshuffle.default": [call(IMAGE, 2)],
    "view.default": [call(A, [2, 12]), call(torch.ones(1), [])],
    "_unsafe_view.default": [call(A, [2, 12])],
    "reshape.default": [call(A.transpose(1, 2), [-1])],
    "permute.default": [call(A, [2, 0, 1])],
    "transpose.int": [call(A, 1, -1)],
    "t.default": [call(MATRIX)],
    "expand.default": [call(VECTOR, [3, -1])],
    "flatten.using_ints": [call(A), call(A, 1), call(A, 0, 1)],
    "unflatten.int": [call(A, -1, [2, 2])],
    "unsqueeze.default": [call(A, -1)],
    "squeeze.dim": [call(A[:, :1], 1)],
    "squeeze.dims": [call(A[:1, :1], [0, 1])],
    "repeat.default": [call(VECTOR, [2, 3])],
    "movedim.int": [call(A, 0, 2)],
    "movedim.intlist": [call(A, [0, 1], [2, 0])],
    "contiguous.default": [
        call(A.transpose(1, 2)),
        call(IMAGE, memory_format=torch.channels_last),
    ],
    "clone.default": [
        call(A.transpose(1, 2)),
        call(A.transpose(1, 2), memory_format=torch.contiguous_format),
        call(IMAGE, memory_format=torch.channels_last),
    ],
    "detach.default": [call(A)],
    "type_as.default": [call(A, A.half())],
    "to.dtype": [call(A, torch.float16)],
    "_to_copy.default": [call(A, dtype=torch.float64)],
    "sym_size.int": [call(A, 1)],
    "sym_numel.default": [call(A)],
    "narrow.default": [call(A, 1, 1, 2)],
    "as_strided.default": [call(A, [2, 2], [1, 2]), call(A, [2, 2], [1, 2], 3)],
    "new_zeros.default": [call(A, [2])],
    "new_ones.default": [call(A, [2])],
    "new_full.default": [call(A, [2], 0.5)],
    "zeros_like.default": [call(A)],
    "ones_like.default": [call(A)],
    "flip.default": [call(A, [0, 2])],
    "roll.default": [call(A, [1]), call(A, [-1, 1], [1, 2])],
    "tril.default": [call(A), call(A, -1)],
    "triu.default": [call(A), call(A, 1)],
    "cat.default": [call([A, B]), call([A, B], 1)],
    "stack.default": [call([A, B]), call([A, B], -1)],
    "split.Tensor": [call(A, 1), call(A, 2, 1)],
    "split_with_sizes.default": [call(A, [1, 1]), call(A, [1, 2], 1)],
    "chunk.default": [call(A, 2), call(A, 2, 1)],
    "unbind.int": [call(A), call(A, 1)],
    "index_select.default": [call(A, 1, INDEX)],
    "gather.default": [call(A, 1, INDEX.view(1, 3, 1))],
    "repeat_interleave.self_int": [call(A, 2), call(A, 2, 1)],
    "select.int": [call(A, 0, 1), call(A, 1, -1), call(A, -1, 2), call(A, -2, 0)],
    "slice.Tensor": [
        call(A),
        call(A, 0, 1),
        call(A, 1, 0, 2),
        call(A, 1, None, 2**63 - 1, 2),
        call(A, -1, -3, -1),
        call(A, -2, 1, 100),
    ],
}


def graph_of(overload: Any, given: Given, used: str) -> tuple[fx.Graph, dict[str, Tensor]]:
    """A graph with one call, whose tensors are inputs; ``used`` are the parts of its result."""
    graph, tensors = fx.Graph(), {}

    def leaf(value: Any) -> Any:
        if isinstance(value, list):
            return [leaf(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        name = f"tensor_{len(tensors)}"
        tensors[name] = value
        return graph.placeholder(name)

    args = tuple(leaf(value) for value in given.args)
    node = graph.call_function(overload, args, {k: leaf(v) for k, v in given.kwargs.items()})
    parts = [node]
    if used:
        count = len(overload(*given.args, **given.kwargs))
        parts = [graph.call_function(operator.getitem, (node, i)) for i in range(count)]
    graph.output(parts[:1] if used == "first" else parts)
    return graph, tensors


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return type(one) is type(other) and one == other
    kinds = (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)
    return (
        kinds
        and (one.layout != torch.strided or one.stride() == other.stride())
        and equal(one, other)
    )


def equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(7.25), other.nan_to_num(7.25))


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_means_the_same(name: str) -> None:
    overload = overload_of(name)
    used = table()[name][0].results if name in table() else ""
    for given in CASES[name]:
        graph, tensors = graph_of(overload, given, used)
        expected = fx.GraphModule({}, graph)(**tensors)
        spelled(graph)
        graph.lint()
        module = fx.GraphModule({}, graph)
        assert "aten" not in module.code
        assert "torch.ops" not in module.code
        found = module(**tensors)
        for one, other in zip(expected, found, strict=True):
            assert same(one, other), module.code


def test_every_row_and_every_argument_has_a_case() -> None:
    assert table().keys() | {"select.int", "slice.Tensor"} == CASES.keys()
    missing = []
    for name, spellings in table().items():
        for each in spellings:
            calls = [Call(overload_of(name), *given) for given in CASES[name]]
            used = [call for call in calls if each.fits(call)]
            assert used, (name, each.target)
            missing += [
                (name, key)
                for key, argument in each.keywords.items()
                if all(call.is_default(argument) for call in used)
            ]
    assert not missing


NOT = {
    "add.Tensor": call(A, B, alpha=2),
    "batch_norm.default": call(IMAGE, None, None, None, None, True, 0.1, 1e-5, False),
    "_softmax.default": call(A.half(), 1, True),
    "to.dtype": call(A, torch.float32, False, True),
    "_to_copy.default": call(A),
    "elu.default": call(A, 1, 2),
    "max_pool2d_with_indices.default": call(IMAGE, [2, 2]),
    "unbind.int": call(A),
    "upsample_nearest2d.default": call(IMAGE, [16, 16], 2.0, 2.0),
    "zeros_like.default": call(A, dtype=torch.float64),
}


@pytest.mark.parametrize("name", NOT)
def test_what_would_mean_something_else_stays(name: str) -> None:
    """Other arguments, or results that are returned as a list or as a pair."""
    graph, _ = graph_of(overload_of(name), NOT[name], "")
    spelled(graph)
    assert graph.find_nodes(op="call_function", target=overload_of(name))


def test_arguments_that_an_operator_does_not_have() -> None:
    relu = torch.ops.aten.relu.default
    for given in (call(), call(A, B), call(A, self=B), call(A, other=B)):
        with pytest.raises(TypeError, match="takes self"):
            Call(relu, *given)


def test_functions_and_methods_of_the_table() -> None:
    assert spelling.functions()["torch.nn.functional.linear"] is torch.nn.functional.linear
    assert spelling.functions()["torch.linalg.vector_norm"] is torch.linalg.vector_norm
    assert all(callable(function) for function in spelling.functions().values())
    assert all(callable(getattr(Tensor, name)) for name in spelling.methods())
