"""The check `modes`: kernels with another path for a mode, and right ones whose mode changes what it may."""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from checking import ROWS
from counted import PLAIN, case_of, one_off, run_of
from norms import Checkpointed, layernorm, layernorm_bwd

from verify_norm.cases import make
from verify_norm.checks import CHECKS, modes
from verify_norm.checks.modes import _cast
from verify_norm.checks.relations import mode_table
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Output
from verify_norm.core.spec import CaseSpec
from verify_norm.core.ways import COMPILED
from verify_norm.kernels.zoo import ZOO, groupnorm
from verify_norm.kernels.zoo.cheats import honest
from verify_norm.loading.registry import load, load_directions, ready
from verify_norm.running import captures, surroundings
from verify_norm.running.execute import execute
from verify_norm.search.examine import examine

WAYS = (
    *("under torch.no_grad()", "under torch.inference_mode()", "under autocast", "under torch.compile"),
    *("in evaluation, after eval()", "where x, weight, bias alone require a gradient"),
    *("where weight, bias alone require a gradient", "where x alone requires a gradient"),
    *("with deterministic algorithms", "with other numbers of threads of torch", "in a copy.deepcopy of the module"),
    *("under torch.no_grad() where all inputs require a gradient",),
    *("under torch.no_grad() where the parameters require a gradient",),
    *("where x requires a gradient and is another layer's result",),
)
BACKWARDS = (*WAYS[:4], *WAYS[-6:-4])
EVALUATION, COPY = WAYS[4], WAYS[-4]
BATCHED = (
    *("under torch.func.vmap", "under torch.func.vmap of all tensors"),
    "under torch.func.vmap of the parameters",
)
OF_MODULES = (EVALUATION, COPY)
right = layernorm()


def said(run, way, spec=ROWS, op="layernorm_fwd", device="cpu", **contract):
    """What `modes` says of a case that names the mode, by output; "refused" if it does not run; None if not tried."""
    kernel = run if isinstance(run, Kernel) else Kernel("k", op, run=run, contract=Contract(**contract))
    result = execute(kernel, make.case(replace(spec, mode=way), OPS[kernel.op], kernel.contract, device))
    assert CHECKS["modes"].looks(result)
    items = list(CHECKS["modes"].function(result))
    refused = any(isinstance(item, Tried) and item.refused for item in items)
    if NoData() in items:
        return "refused" if refused else None
    return {f.output: f.message for f in items if isinstance(f, Finding)}


def wrong_where(condition):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return (y + 2.0**-6 if condition(x, weight) else y), mean, rstd

    return layernorm_fwd


CONDITIONS = {
    "under torch.no_grad()": lambda x, w: not torch.is_grad_enabled(),
    "under torch.inference_mode()": lambda x, w: torch.is_inference_mode_enabled(),
    "under autocast": lambda x, w: torch.is_autocast_enabled("cpu"),
    "under torch.compile": lambda x, w: torch.compiler.is_compiling(),
    "where x, weight, bias alone require a gradient": lambda x, w: x.requires_grad and w.requires_grad,
    "where x alone requires a gradient": lambda x, w: x.requires_grad and not w.requires_grad,
    "with deterministic algorithms": lambda x, w: torch.are_deterministic_algorithms_enabled(),
    "with other numbers of threads of torch": lambda x, w: torch.get_num_threads() == 3,
    "where weight, bias alone require a gradient": lambda x, w: isinstance(w, torch.nn.Parameter) > x.requires_grad,
    WAYS[-3]: lambda x, w: x.requires_grad > torch.is_grad_enabled(),
    WAYS[-2]: lambda x, w: w.requires_grad > torch.is_grad_enabled() + x.requires_grad,
    WAYS[-1]: lambda x, w: x.grad_fn is not None,
}


@pytest.mark.parametrize("way", CONDITIONS)
def test_another_path_in_one_mode(way):
    found = said(wrong_where(CONDITIONS[way]), way)
    assert set(found) == {"y"}
    assert way in found["y"]


@pytest.mark.parametrize("way", CONDITIONS)
def test_a_failure_in_one_mode(way):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if CONDITIONS[way](x, weight):
            raise ValueError("not now")
        return right(x, weight, bias, eps, normalized_shape)

    assert "it fails: ValueError: not now" in said(layernorm_fwd, way)[None]


class Switched(torch.nn.Module):
    """A norm that leaves the bias out in evaluation, or with `right` takes another way to the same bits."""

    def __init__(self, normalized_shape, eps=1e-5, same=False):
        super().__init__()
        self.eps, self.same = eps, same
        self.weight = torch.nn.Parameter(torch.ones(normalized_shape))
        self.bias = torch.nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x):
        bias = self.bias if self.training or self.same else None
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, bias, self.eps)


def test_a_module_with_another_path_in_evaluation():
    way = "in evaluation, after eval()"
    (wrong,) = load_directions(Switched(64), "layernorm_fwd")
    (same,) = load_directions(Switched(64, same=True), "layernorm_fwd")
    assert "in evaluation" in said(wrong, way, replace(ROWS, eps=1e-5))["y"]
    assert said(same, way) == {}


class Copied(Switched):
    """A norm whose copies forget eps, or with `same` do not."""

    def __deepcopy__(self, memo):
        copy = Copied(self.weight.shape, self.eps if self.same else 1e-3, self.same)
        copy.load_state_dict(self.state_dict())
        return copy


class Shared(Switched):
    """A norm whose copy by copy.copy forgets eps."""

    def __copy__(self):
        copy = Shared(self.weight.shape, self.eps if self.same else 1e-3, self.same)
        copy.load_state_dict(self.state_dict())
        return copy


class Pickled(Switched):
    """A norm that forgets eps in a pickle alone."""

    def __getstate__(self):
        return {**vars(self), **({} if self.same else {"eps": 1e-3})}

    def __copy__(self):
        return Pickled(self.weight.shape, self.eps, self.same)

    def __deepcopy__(self, memo):
        return self.__copy__()


class Loaded(Switched):
    """A norm that loads the state of another one, but eps in float16."""

    def get_extra_state(self):
        return {"eps": self.eps}

    def set_extra_state(self, state):
        self.eps = state["eps"] if self.same else 1e-3


class Uncopied(Switched):
    """A norm that has what no copy may have."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.lock, self.function = threading.Lock(), lambda x: x


COPIES = {
    Copied: (ways.COPIED, ways.LOADED),  # the module that loads is a deep copy of an instance
    Shared: (ways.SHALLOW,),
    Pickled: (ways.SAVED,),
    Loaded: (ways.LOADED,),
}


@pytest.mark.parametrize("cls", COPIES)
def test_a_module_that_one_way_of_copying_changes(cls):
    for same, outputs in ((False, {"y"}), (True, set())):
        (kernel,) = load_directions(cls(64, same=same), "layernorm_fwd")
        for way in ways.COPIES:
            found = said(kernel, way, replace(ROWS, eps=1e-5))
            assert set(found) == (outputs if way in COPIES[cls] else set()), way
    (kernel,) = load_directions(Uncopied(64), "layernorm_fwd")
    assert {way: said(kernel, way, replace(ROWS, eps=1e-5)) for way in ways.COPIES} == {
        ways.COPIED: None,
        ways.SHALLOW: {},
        ways.SAVED: None,
        ways.LOADED: None,
    }, "what cannot be copied is refused"


def test_settings_of_torch_are_as_before():
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    assert said(wrong_where(lambda x, w: False), WAYS[-5]) == said(right, WAYS[-6]) == {}
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before

    def in_halves(x, weight, bias, eps, normalized_shape):
        """Other bits with more threads, within the bound; and torch refuses to be deterministic."""
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("put_ does not have a deterministic implementation")
        r = x.flip(-1) if torch.get_num_threads() == 3 else x
        mean = r.cumsum(-1)[:, -1:] / x.shape[-1]
        rstd = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x - mean) * rstd * weight + bias, mean[:, 0], rstd[:, 0]

    assert said(in_halves, WAYS[-5]) == {}
    assert said(in_halves, WAYS[-6]) == "refused"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_kernels(way, dtype):
    spec = replace(ROWS, dtype=dtype)

    def native(x, weight, bias, eps, normalized_shape):
        return torch.native_layer_norm(x, normalized_shape, weight, bias, eps)

    def of_numpy(x, weight, bias, eps, normalized_shape):
        y = torch.from_numpy(x.float().numpy().copy())
        return right(y.to(x.dtype), weight, bias, eps, normalized_shape)

    for run in (right, native):
        assert said(run, way, spec) in ({}, None)
    assert said(of_numpy, way, spec) in ({}, None, "refused")  # numpy() takes no leaf that requires a gradient
    assert said(right, way, spec) == (None if way in OF_MODULES else {})  # no module runs
    half = replace(spec, dtype="float16", log2_scale=-20, dy_log2_scale=-20)
    assert said(right, way, half) == (None if way in ("under autocast", *OF_MODULES) else {})  # a CPU's is bfloat16
    assert said(right, way, replace(spec, special="inf", weight=False, x_layout="expanded")) in ({}, None)


def test_a_type_that_autocast_changes():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y.bfloat16() if torch.is_autocast_enabled("cpu") else y, mean, rstd

    def narrow(x, weight, bias, eps, normalized_shape):
        if torch.is_autocast_enabled("cpu"):
            x = x.bfloat16().float()  # before its mean goes, which is far from 0
        return right(x, weight, bias, eps, normalized_shape)

    assert said(layernorm_fwd, "under autocast") == {}
    assert "within the bound of bfloat16" in said(narrow, "under autocast", replace(ROWS, offset=100.0))["y"]


@pytest.mark.parametrize("way", BACKWARDS)
def test_backwards(way):
    def layernorm_bwd_(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        d = dy * 2 if CONDITIONS[way](x, weight) else dy
        return layernorm_bwd()(d, x, weight, bias, mean, rstd, eps, normalized_shape)

    assert said(layernorm_bwd(), way, op="layernorm_bwd") == {}
    narrow = replace(ROWS, dtype="bfloat16", dy_log2_scale=-20)
    assert said(layernorm_bwd(), way, narrow, op="layernorm_bwd") == {}
    assert set(said(layernorm_bwd_, way, op="layernorm_bwd")) >= {"dx", "dweight"}


@pytest.mark.parametrize("way", BACKWARDS)
def test_a_backward_that_uses_autograd_itself(way):
    def layernorm_bwd(dy, x, weight, bias, eps, normalized_shape):
        leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
        y = torch.nn.functional.layer_norm(leaves[0], normalized_shape, *leaves[1:], eps)
        return [g.to(x.dtype) for g in torch.autograd.grad(y, leaves, dy.double())]

    assert said(layernorm_bwd, way, op="layernorm_bwd") == ("refused" if way in WAYS[:2] else {})


def test_what_is_overwritten_in_one_mode():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return (y if torch.is_grad_enabled() else x.copy_(y)), mean, rstd

    for way in WAYS[:2]:
        assert "writes to x" in said(layernorm_fwd, way)[None]
        assert said(layernorm_fwd, way, inplace=("y:x",)) == {}
    assert said(layernorm_fwd, "under autocast") == {}


def test_what_is_overwritten_in_one_mode_alone_beside_what_always_is():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        if not torch.is_grad_enabled():
            weight.mul_(2.0)
        return x.copy_(y), mean, rstd

    found = said(layernorm_fwd, "under torch.no_grad()")
    assert "under torch.no_grad() it writes to weight" in found[None]


def test_what_is_left_switched_off_in_one_mode():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if torch.is_inference_mode_enabled():
            torch.set_default_dtype(torch.float64)
        return right(x, weight, bias, eps, normalized_shape)

    assert "get_default_dtype() changes" in said(layernorm_fwd, "under torch.inference_mode()")[None]
    assert said(layernorm_fwd, "under torch.no_grad()") == {}


def test_tensors_of_inference_mode_have_no_version():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        assert x._version >= 0
        return right(x, weight, bias, eps, normalized_shape)

    assert "do not track version counter" in said(layernorm_fwd, "under torch.inference_mode()")[None]


@pytest.mark.slow
@pytest.mark.parametrize(("named", "tried"), [("quick", set(CONDITIONS) - {COMPILED}), ("", set(CONDITIONS))])
def test_a_case_that_names_no_mode_tries_all_and_one_of_quick_modes_all_but_captures(named, tried):
    found = {way: said(wrong_where(CONDITIONS[way]), named, replace(ROWS, shape=(2, 64))) for way in CONDITIONS}
    assert {way for way, of in found.items() if of} == tried


@pytest.mark.parametrize("name", ["U42_checkpointed", "U52_by_name"])
def test_what_torch_does_not_let_out_of_vmap_is_refused(name):
    for way in BATCHED:
        assert said(ready(ZOO[name].kernel), way) == "refused"


def test_a_module_that_a_checkpoint_runs_again_refuses_vmap():
    kernel = load_directions(Checkpointed, "rmsnorm")[-1]
    for way in BATCHED:
        assert said(kernel, way, replace(ROWS, shape=(2, 64))) == "refused"


@pytest.mark.parametrize("way", [*BATCHED, "quick"])
def test_where_a_thread_of_the_kernel_ends_under_vmap_nothing_else_runs_in_its_process(way):
    """A thread that serves all calls ends by the error of one: the next call would wait for ever."""
    kernel = ready(ZOO["U48_worker"].kernel)
    spec = replace(ROWS, shape=(2, 64), mode=way, further=("modes",))
    try:
        examined = examine(kernel, spec, tuple(CHECKS), "cpu")
    finally:
        honest._plans.clear()
    assert examined.dead
    assert examined.findings == ()
    assert {way for check, way in examined.ways if check == "modes"} & {f"{way} (refused)" for way in BATCHED}


@pytest.mark.parametrize(
    ("way", "said_so"),
    [("under torch.no_grad()", "requires_grad"), ("with deterministic algorithms", "_deterministic")],
)
def test_a_mistake_in_python_is_no_refusal(way, said_so):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if not torch.is_grad_enabled():
            requires_grad  # noqa: B018, F821
        if torch.are_deterministic_algorithms_enabled():
            wrong_where(_deterministic=True)
        return right(x, weight, bias, eps, normalized_shape)

    assert said_so in said(layernorm_fwd, way)[None]


@pytest.mark.parametrize(
    "way", ["where x alone requires a gradient", "under torch.no_grad() where all inputs require a gradient"]
)
def test_running_statistics_that_move_twice_where_x_requires_a_gradient(way):
    def batchnorm(x, weight, bias, running_mean, running_var, training, momentum, eps, *, times=1):
        for _ in range(1 + (times - 1) * x.requires_grad):
            y = torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return y

    spec = CaseSpec((4, 3, 5))
    assert said(batchnorm, way, spec, "batchnorm_fwd") == {}
    assert said(groupnorm.batchnorm, way, spec, "batchnorm_fwd") == {}  # it records how it moves them
    assert set(said(partial(batchnorm, times=2), way, spec, "batchnorm_fwd")) == {"running_mean", "running_var"}


@dataclass(frozen=True)
class Out:
    y: torch.Tensor
    mean: torch.Tensor
    rstd: torch.Tensor


@pytest.mark.parametrize("way", BATCHED)
def test_outputs_in_a_dataclass_come_out_of_vmap(way):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        return Out(*right(x, weight, bias, eps, normalized_shape))

    assert said(layernorm_fwd, way) == {}


class Evaluated(torch.nn.Module):
    """BatchNorm in evaluation, in plain operations."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.weight, self.bias = (
            torch.nn.Parameter(torch.ones(num_features)),
            torch.nn.Parameter(torch.zeros(num_features)),
        )
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.eps, self.momentum = eps, momentum

    def forward(self, x):
        assert not self.training
        per_channel = (-1, *[1] * (x.dim() - 2))
        mean, var, weight, bias = (
            t.reshape(per_channel) for t in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        return (x - mean) * torch.rsqrt(var + self.eps) * weight + bias


@pytest.mark.parametrize("shape", [(1, 1), (3, 4)])
def test_gradients_of_a_sample_have_nothing_of_another_one(shape):
    """The variance of the other sample is negative."""
    *_, kernel = load_directions(Evaluated, "batchnorm_bwd")
    assert said(kernel, BATCHED[1], CaseSpec(shape, "float32", training=False)) == {}


def test_sums_by_a_matrix_product_are_as_good_as_autocast_lets_them():
    def rmsnorm_fwd(x, weight, eps):
        rstd = torch.rsqrt(x.float().square() @ torch.ones(x.shape[-1]) / x.shape[-1] + eps)
        y = x.float() * rstd[:, None] * weight.float()
        return y.to(x.dtype), rstd

    def narrow(x, weight, eps):
        y, rstd = rmsnorm_fwd(x, weight, eps)
        return y * (1 + torch.is_autocast_enabled("cpu") / 64), rstd

    for dtype in ("float32", "bfloat16"):
        spec = replace(ROWS, shape=(256, 16), dtype=dtype)
        assert said(rmsnorm_fwd, "under autocast", spec, "rmsnorm_fwd", lanes=1) == {}
        assert set(said(narrow, "under autocast", spec, "rmsnorm_fwd", lanes=1)) == {"y"}


CAST = 5 * 2.0**-8  # of 1: half an ulp of bfloat16 and four more roundings to it


def cast(usual=0.0, outputs=(), **off):
    """What autocast differs in, where the usual y is off by so much, and outputs there are off or others."""
    case = case_of(PLAIN, "layernorm_fwd")
    there = run_of(case, **{name: one_off(case.expected[name].value.shape, error) for name, error in off.items()})
    found = _cast(run_of(case, y=usual), replace(there, outputs=there.outputs | dict(outputs)))
    return [(one.output, one.index, one.count) for one in found]


def test_how_far_autocast_may_be_off():
    assert cast(y=0.98 * CAST) == []
    assert cast(y=1.02 * CAST) == cast(y=-1.02 * CAST) == [("y", (0, 0), 1)]
    assert cast(y=np.nan) == [("y", (0, 0), 1)]
    assert cast(usual=1.0, y=1.0) == [], "it is wrong already"
    assert cast(0.0, {"y": None}, mean=1.0) == [("mean", (0,), 1)]
    other = Output("float32", (1, 2), np.zeros((1, 2)), None)
    assert cast(0.0, {"y": other}, mean=1.0) == [("y", None, 0), ("mean", (0,), 1)]


def test_leaves_are_those_of_a_call_that_records():
    seen = []
    mode = mode_table._leaves(("x", "weight"))
    mode.wrap(lambda **given: seen.append((given, torch.is_grad_enabled())), "cpu")(
        x=torch.ones(2), weight=torch.ones(2), bias=torch.ones(2)
    )
    ((given, recorded),) = seen
    assert recorded
    assert {name for name, tensor in given.items() if tensor.requires_grad} == {"x", "weight"}


def test_an_output_of_float64_is_taken_for_one_of_its_usual_type():
    def of(**types):
        outputs = {name: Output(dtype, (1,), np.ones(1), None) if dtype else None for name, dtype in types.items()}
        return replace(run_of(case_of(PLAIN, "layernorm_fwd")), outputs=outputs)

    usual = of(y="bfloat16", mean="float32", rstd=None)
    there = of(y="float64", mean="float16", rstd="float64", other=None)
    taken = modes._taken_for_usual(usual, there)
    types = {name: output and output.dtype for name, output in taken.outputs.items()}
    assert types == {"y": "bfloat16", "mean": "float16", "rstd": "float64", "other": None}
    assert all(output.got is there.outputs[name].got for name, output in taken.outputs.items() if output)


def test_a_refusal_to_record_gradients_passes():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if any(t.requires_grad for t in (x, weight, bias)):
            raise ValueError("no gradient here: call it under torch.no_grad()")
        return right(x, weight, bias, eps, normalized_shape)

    for way in WAYS:
        expected = None if way in OF_MODULES else "refused" if "require" in way else {}
        assert said(layernorm_fwd, way) == expected

    def never(x, weight, bias, eps, normalized_shape):
        if torch.is_autocast_enabled("cpu"):
            raise ValueError("no gradient here")
        return right(x, weight, bias, eps, normalized_shape)

    assert "no gradient here" in said(never, "under autocast")[None]


def test_what_is_overwritten_cannot_require_a_gradient():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return x.copy_(y), mean, rstd

    for way in WAYS:
        assert said(layernorm_fwd, way, inplace=("y:x",)) == (None if "require" in way or way in OF_MODULES else {})


def test_a_zero_that_is_overwritten_by_a_negative_zero_has_other_bits():
    def rmsnorm_fwd(x, weight, eps, normalized_shape, weight_offset):
        x.copy_(x * weight)

    for seed in range(4):  # y is 0 or -0, by the sign of the weight
        spec = replace(ROWS, shape=(1, 2), data="zero", seed=seed)
        assert said(rmsnorm_fwd, "under torch.inference_mode()", spec, "rmsnorm_fwd", inplace=("y:x",)) == {}


def untraceable(x, weight, bias, eps, normalized_shape):
    """A norm with what Dynamo cannot trace: a generator's frame, a number of a tensor, and NumPy."""
    largest = max(float(row.abs().max()) for row in x.reshape(-1, x.shape[-1]))
    np.asarray(sys._getframe().f_lineno + largest)
    return right(x, weight, bias, eps, normalized_shape)


def dropping_the_bias(x, weight, bias, eps, normalized_shape):
    return right(x, weight, None if torch.compiler.is_compiling() else bias, eps, normalized_shape)


def in_another_order(x, weight, bias, eps, normalized_shape):
    """Another path to the same norm within its bound, for a compiler to fuse."""
    if torch.compiler.is_compiling():
        return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    return right(x, weight, bias, eps, normalized_shape)[0]


@torch.library.custom_op("verify_norm_test::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half.register_fake
def _(x):
    return x.new_empty(x.shape[::-1])


def misled(x, weight, bias, eps, normalized_shape):
    """A traced program believes the shape that a wrong fake implementation gives."""
    y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
    return (y if half(x).shape == x.shape else -y), mean, rstd


def test_torch_compile():
    way = "under torch.compile"
    assert said(untraceable, way) == said(in_another_order, way) == {}
    assert "under torch.compile" in said(dropping_the_bias, way)["y"]
    assert set(said(misled, way)) == {"y"}
    assert not torch._dynamo.utils.counters["frames"]


def test_a_triton_kernel_under_torch_compile():
    assert said(load("rmsnorm_fwd"), "under torch.compile", op="rmsnorm_fwd") == {}


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_compiled_already_is_left_as_it_is(fullgraph):
    compiled = torch.compile(right, backend="eager", dynamic=True, fullgraph=fullgraph)
    try:
        compiled(torch.ones(2, 4), None, None, 0.0, (4,))
        assert said(right, "under torch.compile") == "refused"
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@contextmanager
def compiling(function, fullgraph=False):
    """The function as torch.compile makes it anew for each mode, by a backend that changes the process as it does."""

    def backend(graph, inputs):
        sys.setrecursionlimit(sys.getrecursionlimit() + 1000)
        return graph.forward

    limit = sys.getrecursionlimit()
    try:
        yield torch.compile(function, backend=backend, dynamic=False, fullgraph=fullgraph)
    finally:
        sys.setrecursionlimit(limit)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def another_order_without_gradients(x, weight, bias, eps, normalized_shape):
    if torch.is_grad_enabled():
        return right(x, weight, bias, eps, normalized_shape)[0]
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def another_bias_without_gradients(x, weight, bias, eps, normalized_shape):
    return right(x, weight, bias if torch.is_grad_enabled() else None, eps, normalized_shape)[0]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_torch_compile_makes_for_each_mode_is_held_to_its_bound(fullgraph):
    way, spec = "under torch.no_grad()", replace(ROWS, shape=(40, 60))
    assert said(another_order_without_gradients, way, spec) != {}
    with compiling(another_order_without_gradients, fullgraph) as compiled:
        assert said(compiled, way, spec) == {}
    with compiling(another_bias_without_gradients, fullgraph) as compiled:
        assert set(said(compiled, way, spec)) == {"y"}


def test_an_effect_of_every_call_in_a_mode():
    def deeper(x, weight, bias, eps, normalized_shape):
        if not torch.is_grad_enabled():
            sys.setrecursionlimit(sys.getrecursionlimit() + 1000)
        return right(x, weight, bias, eps, normalized_shape)

    limit = sys.getrecursionlimit()
    assert "sys.getrecursionlimit() changes" in said(deeper, "under torch.no_grad()")[None]
    assert sys.getrecursionlimit() == limit


USUAL = {
    "under torch.no_grad()": lambda: torch.set_grad_enabled(True),
    "with deterministic algorithms": lambda: torch.use_deterministic_algorithms(False),
    "with other numbers of threads of torch": lambda: torch.set_num_threads(1),
    "with float64 as torch's default type": lambda: torch.set_default_dtype(torch.float32),
    "with float32 matrix products of precision high": lambda: torch.set_float32_matmul_precision("highest"),
}


@pytest.mark.parametrize("way", USUAL)
def test_a_setting_that_is_put_back_to_what_it_usually_is(way):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        result = right(x, weight, bias, eps, normalized_shape)
        USUAL[way]()
        return result

    with surroundings.holding("torch.get_num_threads()", 1):
        assert "a call must leave it as it found it" in said(layernorm_fwd, way)[None]
        assert said(layernorm_fwd, "under autocast") == {}


@pytest.mark.parametrize("way", ["where x, weight, bias alone require a gradient", WAYS[-1]])
def test_a_hook_on_the_gradient_of_an_argument(way):
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if x.requires_grad:
            x.register_hook(lambda gradient: 2 * gradient)
        return right(x, weight, bias, eps, normalized_shape)

    assert "x._backward_hooks changes from 0 to 1" in said(layernorm_fwd, way)[None]
    assert said(layernorm_fwd, "under torch.no_grad()") == {}


def test_a_setting_that_is_changed_in_each_call_is_left_to_effects():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        torch.set_num_threads(1)
        return right(x, weight, bias, eps, normalized_shape)

    with surroundings.holding("torch.get_num_threads()", 2):
        assert said(layernorm_fwd, "with other numbers of threads of torch") == {}


DIFFERENTIABLE = {
    "under torch.compile": lambda y: y.detach() + (y - y.detach()) / 2 if torch.compiler.is_compiling() else y,
    "under autocast": lambda y: y.detach() + (y - y.detach()) / 2 if torch.is_autocast_enabled("cpu") else y,
}


@pytest.mark.parametrize("way", DIFFERENTIABLE)
def test_gradients_of_a_forward_in_a_mode(way):
    def layernorm(x, weight, bias, eps, normalized_shape):
        y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
        return DIFFERENTIABLE[way](y) if wrong else y

    *_, kernel = load_directions(layernorm, "layernorm", contract=Contract(expanded=True, summation="sequential"))
    wrong = True
    assert "dx" in said(kernel, way)
    wrong = False
    assert all(said(kernel, mode) == {} for mode in DIFFERENTIABLE)


def test_a_tensor_without_a_dtype_is_named_where_torch_has_another_default_type():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        held = torch.zeros(rstd.shape)  # float64 there: its first bytes get the bits of float32
        held.view(torch.float32).view(-1)[: rstd.numel()] = rstd.view(-1)
        return y, mean, held

    found = said(layernorm_fwd, "with float64 as torch's default type")
    assert set(found) == {"rstd"}
    assert found["rstd"].endswith("; a tensor that is made without a dtype has that type")


SETTINGS = {
    "with deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "with other numbers of threads of torch": lambda: torch.get_num_threads() > 1,
    "with float64 as torch's default type": lambda: torch.get_default_dtype() == torch.float64,
    "with float32 matrix products of precision high": lambda: torch.get_float32_matmul_precision() == "high",
}


class Scaled(torch.autograd.Function):
    """A tensor, whose gradient is a multiple of what it must be: that which `factor` returns in the backward."""

    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.factor = factor
        return tensor.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor(), None


@pytest.mark.parametrize("way", SETTINGS)
def test_a_setting_of_the_process_holds_in_a_backward_by_autograd(way):
    def layernorm(x, weight, bias, eps, normalized_shape):
        x = Scaled.apply(x, lambda: 0.5 if wrong and SETTINGS[way]() else 1.0)
        return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)

    *_, kernel = load_directions(layernorm, "layernorm", contract=Contract(expanded=True, summation="sequential"))
    with surroundings.holding("torch.get_num_threads()", 1):
        wrong = True
        assert set(said(kernel, way)) == {"dx"}
        wrong = False
        assert said(kernel, way) == {}


def test_numbers_of_threads_take_turns():
    seen = set()
    with surroundings.holding("torch.get_num_threads()", 1):  # as usual, a number that is not tried
        for variant in range(len(mode_table.THREADS)):
            for count in mode_table.THREADS:
                found = said(wrong_where(lambda x, w, n=count: torch.get_num_threads() == n), ways.THREADED,
                             replace(ROWS, variant=variant))  # fmt: skip
                assert all(f"with other numbers of threads of torch ({count})" in words for words in found.values())
                seen |= {(variant, count)} if found else set()
        assert torch.get_num_threads() == 1
    assert all(len([1 for pair in seen if pair[place] == one]) == 2 for place in (0, 1) for one in
               (range(len(mode_table.THREADS)), mode_table.THREADS)[place])  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "every_other"])
@pytest.mark.parametrize("wrong", ["", "dx", "dweight"])
def test_gradients_of_parameters_and_of_another_layers_result(wrong, layout):
    def layernorm(x, weight, bias, eps, normalized_shape):
        of_x = 1.0 if x.is_leaf or wrong != "dx" else 0.5
        of_weight = 0.5 if isinstance(weight, torch.nn.Parameter) and wrong == "dweight" else 1.0
        x, weight = Scaled.apply(x, lambda: of_x), Scaled.apply(weight, lambda: of_weight)
        return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)

    *_, kernel = load_directions(layernorm, "layernorm", contract=Contract(expanded=True, summation="sequential"))
    found = said(kernel, ways.INSIDE, replace(ROWS, x_layout=layout))
    assert set(found) == {wrong} - {""}


class Halved(torch.autograd.Function):
    """x, whose gradient under torch.compile is a half of what it must be, as one that goes elsewhere is."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 0.5 if torch.compiler.is_compiling() else 1.0
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor


@pytest.mark.parametrize("misroutes", [False, True])
def test_gradients_of_a_function_that_dynamo_gives_to_the_wrong_output_are_not_the_kernels(misroutes, monkeypatch):
    def layernorm(x, weight, bias, eps, normalized_shape):
        return torch.nn.functional.layer_norm(Halved.apply(x), normalized_shape, weight, bias, eps)

    monkeypatch.setattr(captures, "MISROUTES", misroutes)
    *_, kernel = load_directions(layernorm, "layernorm", contract=Contract(expanded=True, summation="sequential"))
    found = said(kernel, "under torch.compile")
    assert found is None if misroutes else "dx" in found


def test_gradients_of_a_module_in_evaluation():
    class Detached(torch.nn.LayerNorm):
        def forward(self, x):
            return super().forward(x if self.training else x / 2 + x.detach() / 2)

    *_, kernel = load_directions(Detached, "layernorm", contract=Contract(expanded=True, summation="sequential"))
    assert set(said(kernel, "in evaluation, after eval()", replace(ROWS, eps=1e-5))) == {"dx"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_a_cuda_graph():
    def synchronizing(x, weight, bias, eps, normalized_shape):
        x.sum().item()
        return right(x, weight, bias, eps, normalized_shape)

    def of_a_number(x, weight, bias, eps, normalized_shape):
        if not torch.cuda.is_current_stream_capturing():
            kept[:] = [float(x.flatten()[0])]
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y + kept[0], mean, rstd

    kept, way = [], "in a CUDA graph with new values"
    found = {}
    for run in (right, synchronizing, of_a_number):  # as a search examines them: with a clock
        examined = examine(Kernel("k", "layernorm_fwd", run=run), replace(ROWS, mode=way), ("modes",), "cuda:0")
        found[run] = examined.ways, {finding.output for finding in examined.findings}
    taken, refused = ("modes", way), ("modes", f"{way} (refused)")
    assert found == {right: ((taken,), set()), synchronizing: ((refused,), set()), of_a_number: ((taken,), {"y"})}


def test_in_inference_mode_data_are_made_as_the_case_places_them():
    """A kernel may take another path for what is not contiguous, or not aligned."""

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        fast = x.is_contiguous() and x.data_ptr() % 16 == 0
        return (right if fast else other)(x, weight, bias, eps, normalized_shape)

    other = layernorm("welford")
    for layout in ("contiguous", "offset", "row_strided", "far"):
        assert said(layernorm_fwd, "under torch.inference_mode()", replace(ROWS, x_layout=layout)) == {}


class Batching(torch.autograd.Function):
    """RMSNorm with a rule for vmap: of one statistic for the whole batch, or with `right` of one for each sample."""

    right = False

    @staticmethod
    def forward(x, weight, eps):
        rstd = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x.float() * rstd * weight.float()).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @classmethod
    def vmap(cls, info, places, x, weight, eps):
        x, weight = (t if place is None else t.movedim(place, 0) for t, place in zip((x, weight), places, strict=False))
        axes = -1 if cls.right else (0, -1)
        rstd = (x.float().square().mean(axes, keepdim=True) + eps).rsqrt()
        weight = weight.unsqueeze(-2) if weight.dim() > 1 else weight
        return (x.float() * rstd * weight.float()).to(x.dtype), 0


class BatchingRight(Batching):
    right = True


@pytest.mark.parametrize("way", BATCHED)
def test_a_rule_for_vmap(way):
    for kind, outputs in ((Batching, {"y"}), (BatchingRight, set())):
        assert set(said(lambda x, weight, eps, kind=kind: kind.apply(x, weight, eps), way, op="rmsnorm_fwd")) == outputs
    assert said(right, way) == said(layernorm_bwd(), way, op="layernorm_bwd") == {}
    of_number = said(lambda x, weight, eps: torch.tensor((x * x).sum().item()), way, op="rmsnorm_fwd")
    assert of_number == ({} if way == ways.PARAMETERS_BATCHED else "refused")
    assert said(right, way, inplace=("y:x",)) is said(right, way, replace(ROWS, dtype="bfloat16")) is None


class OfTheFirstDimension(BatchingRight):
    """Its rule takes the first dimension of x for the batch, where there are as many rows as samples too."""

    @classmethod
    def vmap(cls, info, places, x, weight, eps):
        assert x.shape[0] == info.batch_size
        return BatchingRight.vmap(info, (0, *places[1:]), x, weight, eps)


def test_a_rule_for_vmap_that_takes_the_first_dimension_for_the_batch():
    def rmsnorm_fwd(x, weight, eps):
        return OfTheFirstDimension.apply(x, weight, eps)

    assert set(said(rmsnorm_fwd, BATCHED[0], replace(ROWS, shape=(2, 8)), op="rmsnorm_fwd")) == {"y"}
    assert said(rmsnorm_fwd, BATCHED[0], replace(ROWS, shape=(3, 8)), op="rmsnorm_fwd") == {}  # refused


class OfOneModel(BatchingRight):
    """Its rule has the first model's weight for all models of one x."""

    @classmethod
    def vmap(cls, info, places, x, weight, eps):
        if places[0] is None:
            weight = weight.movedim(places[1], 0)[:1].expand_as(weight)
        return BatchingRight.vmap(info, places, x, weight, eps)


def test_a_rule_for_vmap_of_the_parameters_alone():
    found = {
        way: said(lambda x, weight, eps: OfOneModel.apply(x, weight, eps), way, op="rmsnorm_fwd") for way in BATCHED
    }
    assert [set(found[way]) for way in BATCHED] == [set(), set(), {"y"}]
