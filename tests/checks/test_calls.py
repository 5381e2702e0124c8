"""The check `calls`: kernels that keep something between calls or threads, and right ones that keep what they may."""

import sys
import threading
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from checking import ROWS, layernorm_fwd
from exact import exact
from norms import layernorm
from torch.utils import _python_dispatch

from verify_norm.cases import make
from verify_norm.checks import CHECKS, calls
from verify_norm.checks.relations import between, held
from verify_norm.checks.relations.two_runs import Difference
from verify_norm.core import ways
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding, NoData, Tried
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.loading import module_calls
from verify_norm.loading.registry import load, load_directions
from verify_norm.running.execute import execute

pytestmark = pytest.mark.usefixtures("long_series")
WAYS = {
    "values": ways.VALUES,
    "parameters": ways.NEW_PARAMETERS,
    "many": ways.MANY,
    "threads": ways.TWO_THREADS,
    "between": ways.BETWEEN,
}
right = layernorm()


def said(run, way, spec=ROWS, inferring=False, **contract):
    """What `calls` says of a case that names the way: messages by output."""
    spec = replace(spec, call=WAYS[way], called=ways.AS_IN_INFERENCE if inferring else ways.AS_USUAL)
    kernel = run if isinstance(run, Kernel) else Kernel("k", "layernorm_fwd", run=run, contract=Contract(**contract))
    result = execute(kernel, make.case(kernel.fitted(spec), OPS[kernel.op], kernel.contract))
    found = [f for f in CHECKS["calls"].function(result) if isinstance(f, Finding)]
    assert {f.check for f in found} <= {"calls"}
    return {f.output: f.message for f in found}


def keyed_by(key, whole=True):
    """A norm that keeps its results by what `key` gives of x and weight, and by all of bias."""
    kept = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        mine = key(x, weight), bias.float().numpy().tobytes() if whole else None
        if mine not in kept:
            kept[mine] = right(x, weight, bias, eps, normalized_shape), x, weight
        return tuple(t.clone() for t in kept[mine][0])

    return layernorm_fwd


@pytest.mark.parametrize(
    "key", [lambda x, w: x.data_ptr(), lambda x, w: id(x), lambda x, w: (id(x), id(w), x.shape, w.stride())]
)
@pytest.mark.parametrize("spec", [ROWS, replace(ROWS, x_layout="expanded"), replace(ROWS, x_layout="every_other")])
def test_results_kept_by_storage_or_object(key, spec):
    found = said(keyed_by(key, whole=False), "values", spec)
    assert "y" in found
    assert "where all tensors of the call before hold them now" in found["y"]


def told(kernel, op, spec):
    """What `calls` says in the cases that let each input have new values alone, of a kernel of any operator."""
    specs = [replace(spec, call=WAYS["values"], called=ways.AS_USUAL, variant=turn) for turn in range(6)]
    kernel = Kernel("k", op, run=kernel)
    results = [execute(kernel, make.case(one, OPS[op], kernel.contract)) for one in specs]
    assert {result.problem for result in results} == {None}
    return [f.message for result in results for f in CHECKS["calls"].function(result) if isinstance(f, Finding)]


@pytest.mark.parametrize("spec", [ROWS, replace(ROWS, weight=False), replace(ROWS, shape=(4, 2000))])
def test_what_is_kept_by_one_input_and_depends_on_another(spec):
    def kept_by(*names):
        kept = {}

        def add_rmsnorm_fwd(x, residual, weight, eps):
            total = x + residual
            key = tuple(t.numpy().tobytes() for name, t in {"x": x, "residual": residual}.items() if name in names)
            rstd = kept.setdefault((*key, eps), (total.square().mean(-1, keepdim=True) + eps).rsqrt())
            return total * rstd * (1 if weight is None else weight), total, rstd.flatten()

        return add_rmsnorm_fwd

    assert told(kept_by("x", "residual"), "add_rmsnorm_fwd", spec) == []
    assert told(kept_by("x", "residual"), "add_rmsnorm_fwd", replace(spec, alias="x:residual")) == []
    for one, other in (("x", "residual"), ("residual", "x")):
        found = told(kept_by(one), "add_rmsnorm_fwd", spec)
        assert any(f"after a call in which {other} alone had other values" in message for message in found)


def test_what_a_backward_keeps_by_dy_and_depends_on_x():
    def kept_by(whole):
        kept = {}

        def rmsnorm_bwd(dy, x, weight, rstd):
            key = dy.numpy().tobytes(), weight.numpy().tobytes(), x.numpy().tobytes() if whole else None
            g, xhat = dy * weight, x * rstd[:, None]
            c = kept.setdefault((*key, rstd.numpy().tobytes() if whole else None), (g * xhat).mean(-1, keepdim=True))
            return rstd[:, None] * (g - xhat * c), (dy * xhat).sum(0)

        return rmsnorm_bwd

    assert told(kept_by(True), "rmsnorm_bwd", ROWS) == []
    assert any("in which x alone" in message for message in told(kept_by(False), "rmsnorm_bwd", ROWS))


def test_what_is_kept_by_all_tensors_and_depends_on_eps():
    def kept_by(whole):
        kept = {}

        def rmsnorm_fwd(x, weight, eps):
            key = "rstd", x.numpy().tobytes(), eps if whole else None
            rstd = kept.setdefault(key, (x.square().mean(-1, keepdim=True) + eps).rsqrt())
            return x * rstd * weight, rstd.flatten()

        def rmsnorm_bwd(dy, x, weight, rstd):
            key = "xhat", x.numpy().tobytes(), rstd.numpy().tobytes() if whole else None
            xhat = kept.setdefault(key, x * rstd[:, None])
            g = dy * weight
            return rstd[:, None] * (g - xhat * (g * xhat).mean(-1, keepdim=True)), (dy * xhat).sum(0)

        return rmsnorm_fwd, rmsnorm_bwd

    for right, wrong in zip(kept_by(True), kept_by(False), strict=True):
        assert told(right, right.__name__, ROWS) == []
        assert any("eps alone was another" in message for message in told(wrong, wrong.__name__, ROWS))


def test_a_converted_bias_kept_by_its_sum():
    def kept_by(key):
        kept = {}

        def layernorm_fwd(x, weight, bias, eps, normalized_shape):
            return right(x, weight, kept.setdefault(key(bias), bias.clone()), eps, normalized_shape)

        return layernorm_fwd

    assert told(kept_by(lambda bias: bias.float().numpy().tobytes()), "layernorm_fwd", ROWS) == []
    found = told(kept_by(lambda bias: bias.double().sum().item()), "layernorm_fwd", replace(ROWS, dtype="bfloat16"))
    assert any("of bias were swapped" in message for message in found)


def test_a_converted_bias_kept_in_inference_alone():
    """What is looked at in inference is compared with the truth too."""
    kept = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        held = bias if torch.is_grad_enabled() else kept.setdefault(bias.double().sum().item(), bias.clone())
        return right(x, weight, held, eps, normalized_shape)

    spec = replace(ROWS, variant=1)
    assert "of bias were swapped" in said(layernorm_fwd, "values", replace(spec, dtype="bfloat16"), True)["y"]
    assert said(layernorm_fwd, "values", replace(spec, dtype="bfloat16")) == {}


def test_a_result_kept_by_the_version_of_its_inputs():
    """What writes through .data, as what a kernel writes, counts no version."""
    run = keyed_by(lambda x, w: (id(x), x._version, id(w), w._version), whole=False)
    for way in ("values", "parameters"):
        assert "written through .data, which counts no version" in said(run, way)["y"]
    assert said(keyed_by(lambda x, w: (x.numpy().tobytes(), w.numpy().tobytes())), "parameters") == {}


@pytest.mark.parametrize("right", [False, True])
def test_a_scale_kept_as_a_number_by_its_version(right):
    kept = {}

    def rmsnorm_fp8_fwd(x, weight, scale, eps):
        number = kept.setdefault((id(scale), scale._version, scale.item() if right else 0), (scale.item(), scale))[0]
        wide = x.double()
        rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        z = wide * rstd * (1 if weight is None else weight.double())
        y = (z * number).float().clamp(-448, 448).to(torch.float8_e4m3fn)
        return y, z.abs().max().float().reshape(1), rstd.float().flatten()

    found = told(rmsnorm_fp8_fwd, "rmsnorm_fp8_fwd", ROWS)
    assert right == (not any("scale alone had other values, written through .data since" in words for words in found))
    assert not (right and found)


@pytest.mark.parametrize(
    "sample", [lambda x: (x.flatten()[0].item(), x.flatten()[-1].item()), lambda x: x.norm().item()]
)
def test_statistics_kept_by_a_sample_of_the_values(sample):
    run = keyed_by(lambda x, w: (sample(x), w.numpy().tobytes()))
    found = said(run, "values", replace(ROWS, data="integers", dtype="float32"))
    assert "were swapped" in found["y"]
    assert said(keyed_by(lambda x, w: (x.numpy().tobytes(), w.numpy().tobytes())), "values") == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_statistics_kept_by_fewer_digits_of_the_values(dtype):
    for digits in (torch.float8_e5m2, torch.bfloat16, torch.float32):
        coarse = digits.itemsize < getattr(torch, dtype).itemsize
        run = keyed_by(lambda x, w, digits=digits: tuple(t.to(digits).float().numpy().tobytes() for t in (x, w)))
        found = said(run, "values", replace(ROWS, dtype=dtype))
        assert ("smaller by a factor" in found["y"]) if coarse else found == {}


def test_what_is_inaccurate_at_some_weights_is_not_kept():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y * torch.where(weight < 0, 1 + 2.0**-16, 1), mean, rstd

    assert said(layernorm_fwd, "values", replace(ROWS, weight_data="one")) == {}


def test_a_converted_weight_kept_by_its_magnitudes():
    kept = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        held = kept.setdefault(weight.abs().numpy().tobytes(), weight.clone())
        return right(x, held, bias, eps, normalized_shape)

    assert "had the opposite sign" in said(layernorm_fwd, "values")["y"]


def test_outputs_that_do_not_outlive_the_inputs():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        made = right(x, weight, bias, eps, normalized_shape)
        weakref.finalize(x, lambda y: y.zero_(), made[0].view_as(made[0]))
        return made

    assert "although the caller still holds it" in said(layernorm_fwd, "many")["y"]


def test_two_threads_leave_torchs_flags_of_its_modes_as_they_were(monkeypatch):
    """They are of the process: where one thread leaves a mode while the other is in one, they stay on."""
    monkeypatch.setattr(_python_dispatch, "_is_in_torch_dispatch_mode", False)
    left = _python_dispatch.TorchDispatchMode.__exit__

    def left_on(mode, *of):
        left(mode, *of)
        if threading.current_thread() is not threading.main_thread():
            _python_dispatch._is_in_torch_dispatch_mode = True

    monkeypatch.setattr(_python_dispatch.TorchDispatchMode, "__exit__", left_on)
    assert said(layernorm(), "threads") == {}
    assert _python_dispatch.is_in_torch_dispatch_mode() is False


def test_a_converted_weight_kept_by_its_address():
    kept = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        held = kept.setdefault(weight.data_ptr(), (weight.float(), weight))
        return right(x, held[0], bias, eps, normalized_shape)

    half = replace(ROWS, dtype="bfloat16")
    assert "weight and bias" in said(layernorm_fwd, "parameters", half)["y"]
    assert said(layernorm_fwd, "many", half) == {}  # each of its calls has a weight of its own, which it keeps alive


PLANS = {"eps": lambda x, w, eps: eps, "weight": lambda x, w, eps: w is None, "strides": lambda x, w, eps: x.stride()}


@pytest.mark.parametrize("spec", [ROWS, replace(ROWS, weight=False, bias=False, shape=(5, 16), x_layout="row_strided")])
@pytest.mark.parametrize("kept", PLANS)
def test_a_plan_of_a_shape_that_keeps_other_options(kept, spec):
    """By a plan of all that it depends on, the same kernel is right."""
    for by_all in (False, True):
        plans = {}

        def layernorm_fwd(x, weight, bias, eps, weight_offset, normalized_shape, plans=plans, by_all=by_all):
            option = PLANS[kept](x, weight, eps)
            plan = plans.setdefault((x.shape, option if by_all else None), option)
            x = x.as_strided(x.shape, plan) if kept == "strides" and x.dim() == 2 else x
            weight = torch.ones_like(weight) if kept == "weight" and plan and weight is not None else weight
            return right(x, weight, bias, plan if kept == "eps" else eps, normalized_shape, weight_offset)

        found = said(layernorm_fwd, "between", replace(spec, log2_scale=-8))
        assert by_all == (found == {}) or (kept == "weight" and spec.weight)
        assert not found or "after a call of the same shape" in found["y"]


@pytest.mark.parametrize("variant", range(4))
def test_what_a_call_that_fails_leaves_behind(variant):
    """A buffer that is lent for a call, and given back at its end, also where the call fails if that is right."""
    spec = replace(ROWS, variant=variant)
    for safe in (False, True):
        lent = []

        def layernorm_fwd(x, weight, bias, eps, normalized_shape, lent=lent, safe=safe):
            narrow = bool(lent)
            lent.append(torch.empty(x.shape))
            try:
                made = right(x.bfloat16().float() if narrow else x.float(), weight, bias, eps, normalized_shape)
            except RuntimeError:
                if safe:
                    lent.clear()
                raise
            lent.clear()
            return made[0].to(x.dtype), *made[1:]

        found = said(layernorm_fwd, "between", spec)
        assert found.keys() == (set() if safe else {"y", "mean", "rstd"})
        assert all("after a call that fails, since " in words for words in found.values())


def test_a_buffer_that_is_made_in_inference_mode_and_written_later():
    """As where a model is evaluated before it is trained: torch refuses to write the buffer of a shape."""
    kept = {}

    def scratch(x, weight, bias, eps, weight_offset, normalized_shape):
        buffer = kept.setdefault(x.shape, torch.empty(x.shape))
        return right(buffer.copy_(x).to(x.dtype), weight, bias, eps, normalized_shape, weight_offset)

    assert "after a call under torch.inference_mode(), from which it keeps a tensor" in said(scratch, "between")[None]


def test_ones_that_are_made_in_inference_mode_and_saved_for_a_backward():
    kept = {}

    def with_ones(x, weight, bias, eps):
        ones = kept.setdefault(x.shape, torch.ones(x.shape))
        centred = x - x.mean(-1, keepdim=True)
        return centred * ones * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    kernels = load_directions(with_ones, "layernorm", contract=Contract(expanded=True))
    assert "Inference tensors cannot be saved for backward" in said(kernels[-1], "between")[None]


def test_a_tensor_that_fails_can_be_looked_at_and_is_the_same_memory():
    whole = torch.arange(6.0).reshape(2, 3)
    tensor = between.failing(whole, 1)
    assert (tensor.shape, tensor.dtype, tensor.stride(), tensor.is_contiguous()) == ((2, 3), whole.dtype, (3, 1), True)
    assert type(tensor.detach().requires_grad_()) is type(tensor)
    made = tensor + 1
    assert type(made) is torch.Tensor
    assert made.tolist() == (whole + 1).tolist()
    for operation in (torch.sum, torch.Tensor.data_ptr, lambda t: t.mul_(2), torch.empty_like, torch.Tensor.numpy):
        with pytest.raises(RuntimeError, match="to see what an error leaves behind"):
            operation(tensor)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_outputs_in_a_ring(size):
    ring, count = [None] * size, [0]

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        place = count[0] = (count[0] + 1) % size
        if ring[place] is None or ring[place].shape != y.shape:
            ring[place] = torch.empty_like(y)
        return ring[place].copy_(y), mean, rstd

    found = said(layernorm_fwd, "many")
    assert list(found) == ["y"]
    assert "although the caller still holds it" in found["y"]


def pooled(is_free):
    """A norm that takes the memory of its y from a pool, as soon as `is_free` says that nobody holds it."""
    pool = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        place = next((n for n, held in enumerate(pool) if held.shape == y.shape and is_free(pool, n)), len(pool))
        if place == len(pool):
            pool.append(torch.empty_like(y))
        return pool[place].copy_(y), mean, rstd

    return layernorm_fwd


POOLED, OWN_STORAGE = 4, 2  # references to what nobody else holds, and to its storage: of the pool and of who asks


def test_a_pool_of_outputs_must_see_views_of_them():
    found = said(pooled(lambda pool, n: sys.getrefcount(pool[n]) <= POOLED), "many")
    assert list(found) == ["y"]
    assert "although the caller still holds it" in found["y"]
    assert not said(pooled(lambda pool, n: used(pool[n].untyped_storage()) <= OWN_STORAGE), "many")


def used(storage):
    """How many tensors and storage objects share the memory of a storage."""
    return torch._C._storage_Use_Count(storage._cdata)


def test_outputs_whose_memory_is_given_back_when_their_object_ends():
    free = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        memory = free.pop() if free and free[-1].numel() == y.numel() else torch.empty(y.numel())
        out = memory.view(y.shape)
        weakref.finalize(out, lambda: free.append(memory))
        return out.copy_(y), mean, rstd

    assert "y" in said(layernorm_fwd, "many")


@pytest.mark.parametrize(
    ("now", "count"),
    [((0.0, np.nan, 1.0), 0), ((-0.0, np.nan, 1.0), 1), ((0.0, 2.0, np.nan), 2), ((0.0, np.nan, 3.0), 1)],
)
def test_memory_that_changes_is_counted_in_bits(now, count):
    run = SimpleNamespace(
        kernel=SimpleNamespace(later=None, remote=False, contract=Contract()),
        case=SimpleNamespace(spec=CaseSpec((3,)), op=OPS["rmsnorm_fwd"]),
        returned={"y": torch.tensor(now)},
        outputs={"y": SimpleNamespace(got=np.array([0, np.nan, 1]))},
    )
    assert [one.words.partition(" ")[0] for one in calls._rewritten(run, "later")] == [str(count)] * bool(count)


def test_a_call_that_goes_wrong_late(monkeypatch):
    monkeypatch.setattr(calls, "SECONDS", 10.0)  # a loaded machine
    count = [0]

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        count[0] += 1
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return (y * 2 if count[0] == 60 else y), mean, rstd

    found = said(layernorm_fwd, "many")
    assert list(found) == ["y"]
    assert "in call" in found["y"]


@pytest.mark.parametrize("right_calls", range(4, 20))
def test_a_result_of_a_former_call_whatever_the_number_of_calls_before(right_calls, monkeypatch):
    """The result that is kept is one of the case's own values, or one of the other values of the series."""
    monkeypatch.setattr(calls, "SECONDS", 10.0)  # a loaded machine
    count, kept = [0], []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        count[0] += 1
        if count[0] <= right_calls:
            kept[:] = right(x, weight, bias, eps, normalized_shape)
        return tuple(t.clone() for t in kept)

    assert "in call" in said(layernorm_fwd, "many")["y"]


def test_a_writer_that_comes_after_the_call():
    """It waits for the next call, so that no machine is too fast or too slow for it."""
    writers = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        for called, writer in writers:
            called.set()
            writer.join()
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        called = threading.Event()
        writer = threading.Thread(target=lambda: called.wait(1.0) and y.zero_(), daemon=True)
        writer.start()
        writers[:] = [(called, writer)]
        return y, mean, rstd

    assert "y" in said(layernorm_fwd, "many")


def test_a_scratch_buffer_that_threads_share():
    scratch = {}

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        held = scratch.setdefault(x.shape, torch.empty_like(x)).copy_(x)
        time.sleep(0.002)  # another thread runs here
        return right(held, weight, bias, eps, normalized_shape)

    found = said(layernorm_fwd, "threads")
    assert "beside a call in another thread" in found["y"]
    assert said(layernorm_fwd, "many") == {}

    lock = threading.Lock()

    def guarded(x, weight, bias, eps, normalized_shape):
        with lock:
            return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    assert said(guarded, "threads") == {}


def test_a_fault_in_another_thread_alone():
    main = threading.main_thread()

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        if threading.current_thread() is not main:
            raise RuntimeError("no context in this thread")
        return right(x, weight, bias, eps, normalized_shape)

    assert "no context in this thread" in said(layernorm_fwd, "threads")[None]


@pytest.mark.parametrize("way", WAYS)
def test_right_kernels_that_keep_what_they_may(way):
    plans = {}

    def planned(x, weight, bias, eps, normalized_shape):
        plans.setdefault((x.shape, x.dtype), x.numel())
        return right(x, weight, bias, eps, normalized_shape)

    assert said(planned, way) == said(layernorm_fwd, way) == {}
    assert said(planned, way, replace(ROWS, x_layout="expanded", special="nan", weight=False)) == {}


def test_a_kernel_in_place():
    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return x.copy_(y), mean, rstd

    for way in WAYS:
        assert said(layernorm_fwd, way, inplace=("y:x",)) == {}


def test_what_differs_in_every_second_call_is_left_to_determinism():
    count = [0]

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        count[0] += 1
        y, mean, rstd = right(x, weight, bias, eps, normalized_shape)
        return y + count[0] * 1e-3, mean, rstd

    for way in WAYS:
        assert said(layernorm_fwd, way) == {}


def test_a_triton_kernel_in_two_threads():
    kernel = load("rmsnorm_fwd")
    result = execute(kernel, make.case(replace(ROWS, call=ways.TWO_THREADS), OPS[kernel.op], kernel.contract))
    assert CHECKS["calls"].looks(result)
    assert list(CHECKS["calls"].function(result)) == [Tried("two threads")]


class Held(torch.nn.LayerNorm):
    """LayerNorm with a weight of its own, which `held` gives; x goes through `taken`, y through `given`."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True):
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine, bias=bias)
        self.kept = None

    def held(self):
        return self.weight

    def taken(self, x):
        return x

    def forward(self, x):
        y, *_ = right(self.taken(x), self.held(), self.bias, self.eps, self.normalized_shape)
        return y


class Converted(Held):
    """It converts its weight in the first call."""

    def held(self):
        if self.kept is None and self.weight is not None:
            self.kept = self.weight.clone()
        return self.kept


class ConvertedInInference(Held):
    def held(self):
        if self.training or torch.is_grad_enabled():
            return self.weight
        return Converted.held(self)


class ConvertedUntilLoaded(Converted):
    """It converts its weight anew where a state is loaded, but not where an optimizer changes it."""

    def load_state_dict(self, *args, **kwargs):
        self.kept = None
        return super().load_state_dict(*args, **kwargs)


class ConvertedAnew(Held):
    """It converts its weight anew where torch's count of versions or the address says that it has changed."""

    def held(self):
        key = None if self.weight is None else (self.weight._version, self.weight.data_ptr())
        if self.kept is None or self.kept[0] != key:
            self.kept = key, None if self.weight is None else self.weight.clone()
        return self.kept[1]


class View(Held):
    """It keeps a view of its weight, which another parameter in its place leaves behind."""

    def held(self):
        if self.kept is None and self.weight is not None:
            self.kept = self.weight.detach().view(-1)
        return self.kept


class ConvertedForEvaluation(Held):
    """It converts its weight in evaluation, and drops that where training goes on, not where a state is loaded."""

    def train(self, mode=True):
        self.kept = None
        return super().train(mode)

    def held(self):
        return self.weight if self.training else Converted.held(self)


class ConvertedForEvaluationRight(ConvertedForEvaluation):
    def _load_from_state_dict(self, *args):
        self.kept = None
        super()._load_from_state_dict(*args)


class ConvertedOfEvaluation(ConvertedForEvaluation):
    """It converts its weight anew in each evaluation, and keeps that for the training that follows."""

    def train(self, mode=True):
        return torch.nn.Module.train(self, mode)

    def held(self):
        if not self.training:
            self.kept = None if self.weight is None else self.weight.detach().clone()
        return self.weight if self.kept is None else self.kept


class Grown(Held):
    """It copies x into a buffer, grown where x is larger; `wrong`: and leaves the rest of it to be read as x."""

    wrong = True

    def taken(self, x):
        if self.kept is None or self.kept.numel() < x.numel() or self.kept.dtype != x.dtype:
            self.kept = x.clone().flatten()
            return x
        if self.wrong:
            return self.kept[: x.numel()].reshape(x.shape)
        return self.kept[: x.numel()].copy_(x.flatten()).reshape(x.shape).clone()


class Frozen(torch.nn.Module):
    """Its weight and bias are buffers, which nothing trains."""

    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__()
        self.normalized_shape, self.eps = tuple(normalized_shape), eps
        self.register_buffer("weight", torch.ones(self.normalized_shape))
        self.register_buffer("bias", torch.zeros(self.normalized_shape))

    def forward(self, x):
        time.sleep(0.002)
        return right(x, self.weight, self.bias, self.eps, self.normalized_shape)[0]


class GrownRight(Grown):
    wrong = False


class Typed(Held):
    """It keeps the type of its first x."""

    def taken(self, x):
        self.kept = self.kept or x.dtype
        return x.to(self.kept).to(x.dtype)


class Scratch(Held):
    """It keeps x while it waits, and another thread may come."""

    def taken(self, x):
        self.kept = x
        time.sleep(0.002)
        return self.kept


class Ring(Held):
    """It returns its own buffer."""

    def forward(self, x):
        y = super().forward(x)
        if self.kept is None or self.kept.shape != y.shape or self.kept.dtype != y.dtype:
            self.kept = torch.empty_like(y)
        return self.kept.copy_(y)


class OfAll(Held):
    """All instances have the eps of the last that was made."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True):
        super().__init__(normalized_shape, eps, elementwise_affine, bias)
        type(self).last = eps

    def forward(self, x):
        return right(x, self.weight, self.bias, self.last, self.normalized_shape)[0]


def test_what_another_instance_of_a_module_changes():
    assert "after a call with other options" in said(of(OfAll), "between", replace(ROWS, log2_scale=-8))["y"]
    assert said(of(Held), "between", replace(ROWS, log2_scale=-8)) == {}


def of(module, op="layernorm_fwd"):
    *_, kernel = load_directions(module, op)
    return kernel


@pytest.mark.parametrize(
    ("module", "way", "inferring", "words"),
    [
        (Converted, "parameters", False, "written in place under torch.no_grad()"),
        (Converted, "many", False, "in call"),
        (ConvertedUntilLoaded, "parameters", False, "written in place"),
        (ConvertedAnew, "parameters", False, "written through .data"),
        (View, "parameters", False, "written as a new nn.Parameter"),
        (ConvertedInInference, "parameters", True, "written in place"),
        (ConvertedOfEvaluation, "parameters", False, "between both the module is evaluated"),
        (ConvertedForEvaluation, "parameters", True, "written by load_state_dict()"),
        (Grown, "between", False, "after a call of ("),
        (Grown, "values", False, "all tensors"),
        (Typed, "between", False, "float32 alone"),
        (Scratch, "threads", False, "in another thread"),
        (Ring, "many", False, "still holds it"),
    ],
)
@pytest.mark.parametrize("named", [lambda cls: cls, lambda cls: cls(64)], ids=["class", "instance"])
def test_what_one_instance_of_a_module_keeps(module, way, inferring, words, named):
    spec = replace(ROWS, eps=1e-5, dtype="bfloat16" if module is Typed else "float32")
    found = said(of(named(module)), way, spec, inferring)
    assert words in found["y"]
    assert said(of(named(module)), way, spec, not inferring) == {} or module is not ConvertedInInference


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_right_modules_that_keep_what_they_may(way):
    batched = CaseSpec((3, 4, 5))
    for inferring in (False, True):
        for module in (torch.nn.LayerNorm, ConvertedForEvaluationRight, GrownRight, Frozen):
            if module is not GrownRight or way != "threads":  # its buffer is for one thread
                assert said(of(module), way, ROWS, inferring) == {}
        for spec in (batched, replace(batched, training=False), replace(batched, dtype="bfloat16")):
            assert said(of(torch.nn.BatchNorm1d, "batchnorm_fwd"), way, spec, inferring) == {}
        assert said(of(torch.nn.LayerNorm, "layernorm"), way, replace(ROWS, frozen=("x",)), inferring) == {}


def test_a_module_that_a_user_names_stays_as_it_is():
    module = Held(64)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for way in WAYS:
        said(of(module), way, replace(ROWS, dtype="bfloat16"))
    assert module.kept is None
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("op", ["gate_rmsnorm_bwd", "batchnorm_bwd", "add_layernorm_bwd", "modulate_layernorm_bwd"])
def test_one_input_of_a_backward_that_recomputes_statistics_changes_and_what_was_saved_with_it(op):
    spec = replace(ROWS, shape=(6, 8))

    def recomputing(**given):
        values = {n: v.double().numpy() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        values |= make.saved(replace(spec, eps=values["eps"]), OPS[op], values)
        found = make.call(OPS[op].reference, values)
        return tuple(None if value is None else torch.tensor(value, dtype=torch.float32) for value in found)

    assert told(recomputing, op, spec) == []


def counted(run=right):
    """A norm, and the threads and weights of its calls, in their order."""
    threads, weights = [], []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        threads.append(threading.current_thread())
        weights.append((weight.numpy().tobytes(), bias.numpy().tobytes()))
        return run(x, weight, bias, eps, normalized_shape)

    return layernorm_fwd, threads, weights


def examined(kernel, spec=ROWS):
    """The run of a case, and other values of its inputs."""
    kernel = kernel if isinstance(kernel, Kernel) else Kernel("k", "layernorm_fwd", run=kernel)
    result = execute(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    return result, calls.other_values(result)


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_a_run_as_in_inference_is_the_usual_one_where_both_differ(off):
    recorded = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        recorded.append(torch.is_grad_enabled())
        y, *saved = right(x, weight, bias, eps, normalized_shape)
        return (y if recorded[-1] else y + off, *saved)

    run, _ = examined(layernorm_fwd)
    recorded.clear()
    inferring = calls._inferring(run)
    assert recorded == [False]
    assert (inferring is run) is bool(off)
    execute(inferring.kernel, run.case)
    assert recorded == [False, bool(off)]


def test_all_tensors_get_new_values_and_then_through_data(monkeypatch):
    run, other = examined(right)
    monkeypatch.setattr(calls, "differences", lambda usual, one, words: [words[1]])
    for how, more in (({}, ""), ({"uncounted": True}, ", written through .data, which counts no version")):
        (words,) = calls._overwritten(held.Held(run), other, "all tensors", **how)
        assert words == f"where all tensors of the call before hold them now{more}"
    for answers in (["first"], [[], "second"]):
        asked = Mock(side_effect=answers)
        monkeypatch.setattr(calls, "_overwritten", asked)
        assert "".join(calls._values(run, other)) == answers[-1]
        assert [one.args[1:] for one in asked.call_args_list] == [(other, "all tensors")] * len(answers)
        assert [one.kwargs for one in asked.call_args_list] == [{}, {"uncounted": True}][: len(answers)]


@pytest.mark.parametrize(("seconds", "number"), [(-1.0, 5), (1e9, 9)])
def test_a_series_has_as_many_calls_as_its_time_allows(seconds, number, monkeypatch):
    for name, value in {"FEWEST": 5, "MOST": 9, "SECONDS": seconds}.items():
        monkeypatch.setattr(calls, name, value)
    names = []
    monkeypatch.setattr(calls, "differences", lambda usual, one, words: names.append(words) or ())
    kernel, threads, _ = counted()
    run, other = examined(kernel)
    threads.clear()
    assert list(calls._many(run, other)) == []
    assert names == [("alone", f"in call {one}") for one in range(1, number + 1)]
    assert len(threads) == number + 1  # the last one has the other values alone


def test_a_series_says_how_many_calls_later_an_output_changed(monkeypatch):
    monkeypatch.setattr(calls, "SECONDS", -1.0)
    kept = []

    def layernorm_fwd(x, weight, bias, eps, normalized_shape):
        kept.append(right(x, weight, bias, eps, normalized_shape))
        if len(kept) > 6:  # once for the case, then six calls of the series
            kept[3][0].zero_()
        return kept[-1]

    run, other = examined(layernorm_fwd)
    (found,) = calls._many(run, other)
    assert f"change after {calls.FEWEST - 3} more calls" in found.words


@pytest.mark.parametrize(("seconds", "number"), [(-1.0, 3), (600.0, 7)])
def test_two_threads_call_as_often_as_their_time_allows(seconds, number, monkeypatch):
    monkeypatch.setattr(calls, "SECONDS", seconds)
    monkeypatch.setattr(calls, "IN_THREAD", (3, 7))
    names = set()
    monkeypatch.setattr(calls, "differences", lambda usual, one, words: names.add(words) or ())
    kernel, threads, weights = counted()
    run, other = examined(kernel)
    threads.clear()
    weights.clear()
    assert list(calls._threads(run, other)) == []
    main = threading.main_thread()
    assert threads.count(main) == 3  # the parameters are written, and each set of values is taken alone
    by_thread = [threads.count(thread) for thread in set(threads) - {main}]
    assert sum(by_thread) == 2 * number
    assert len(set(weights)) == 1  # they share a module
    assert names == {("alone", "beside a call in another thread")}


@pytest.mark.parametrize("changes", [{"op": "batchnorm_fwd"}, {"autograd": True}])
def test_two_threads_share_no_module_whose_tensors_are_replaced(changes, monkeypatch):
    weights = set()
    kernel = Kernel("k", **{"op": "layernorm_bwd", **changes})

    def noting(**given):
        weights.add((given["weight"].numpy().tobytes(), given["bias"].numpy().tobytes()))
        return exact(kernel.op).run(**given)

    run, other = examined(replace(kernel, run=noting), replace(ROWS, shape=(6, 8)))
    assert run.problem is None
    monkeypatch.setattr(calls, "Held", lambda run: None)  # which would be one module
    assert list(calls._threads(run, other)) == []
    assert len(weights) == 2


@pytest.mark.parametrize(
    ("spec", "op", "names", "changed"),
    [
        (ROWS, "layernorm_fwd", "weight and bias", ["weight", "bias"]),
        (replace(ROWS, bias=False), "layernorm_fwd", "weight", ["weight"]),
        (replace(ROWS, weight=False, bias=False), "layernorm_fwd", "all tensors", ["x", "weight", "bias"]),
        (CaseSpec((3, 4, 5)), "batchnorm_fwd", "weight and bias", ["weight", "bias"]),
    ],
)
@pytest.mark.parametrize("module", [True, False])
@pytest.mark.parametrize("wrong", [True, False])
def test_parameters_are_written_in_each_way_and_then_after_an_evaluation(
    spec, op, names, changed, module, wrong, monkeypatch
):
    called = []

    def overwritten(held, values, which, **how):
        called.append(how)
        assert (which, [*values]) == (names, changed)
        held.instance.modules.update({"a": None} if module else {})
        return [Difference("y", "y differs")] * wrong

    monkeypatch.setattr(calls, "_overwritten", overwritten)
    run, other = examined(Kernel("k", op, run=exact(op).run), spec)
    said = [one.words for one in calls._parameters(run, other)]
    evaluating = [{"evaluating": True}] * (op != "batchnorm_fwd")
    if wrong:
        written = "y differs; the module's parameters are written in place under torch.no_grad()"
        assert said == [written if module else "y differs"]
        assert called == [{}]
    else:
        assert said == []
        assert called == ([{}] * len(module_calls.WRITES) + evaluating if module else [{}, {"uncounted": True}])


@pytest.mark.parametrize("message", ["operation not permitted when stream is capturing", "misaligned address"])
def test_a_capture_of_one_thread_lets_calls_of_the_other_fail_which_is_no_difference(monkeypatch, message):
    run, other = examined(right)
    call = held.Held.__call__

    def failing(self, case):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"CUDA error: {message}")
        return call(self, case)

    monkeypatch.setattr(held.Held, "__call__", failing)
    with nullcontext() if "capturing" in message else pytest.raises(RuntimeError, match=message):
        assert list(calls._threads(run, other)) == []


def test_an_untrusted_kernel_is_not_called_by_two_threads():
    """Its results come from another process, whose channel takes one call at a time."""
    run, _ = examined(right, replace(ROWS, call=ways.TWO_THREADS, called=ways.AS_USUAL))
    assert list(CHECKS["calls"].function(run)) == [Tried(ways.TWO_THREADS)]
    run = replace(run, kernel=replace(run.kernel, later=lambda returned: returned))
    assert [type(one) for one in CHECKS["calls"].function(run)] == [NoData]


def test_an_untrusted_kernel_is_asked_what_its_outputs_hold_now():
    run, _ = examined(right)
    later = replace(run, kernel=replace(run.kernel, later=lambda returned: returned | {"y": returned["y"] + 1}))
    (found,) = calls._rewritten(later, "later")
    assert found.output == "y"
    assert found.words.startswith(f"{run.outputs['y'].got.size} elements of y change later")


def test_only_a_case_that_names_the_check_is_looked_at():
    assert [CHECKS["calls"].looks(examined(right, replace(ROWS, further=some))[0]) for some in (("calls",), ())] == [
        True,
        False,
    ]


class Evaluated(torch.nn.BatchNorm1d):
    """Keeps the weight of its first call without gradients."""

    def forward(self, x):
        if not torch.is_grad_enabled():
            if getattr(self, "kept", None) is None:
                self.kept = self.weight.clone()
            return torch.nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.kept, self.bias, self.training, self.momentum, self.eps
            )
        return super().forward(x)


def test_a_batchnorm_is_called_without_gradients_and_in_training():
    spec = CaseSpec((3, 4, 5))
    assert "after eval(), under no_grad" in said(of(Evaluated, "batchnorm_fwd"), "parameters", spec, True)["y"]
    assert said(of(Evaluated, "batchnorm_fwd"), "parameters", spec) == {}


def results(got, ratio):
    return SimpleNamespace(got=np.array(got), ratio=None if ratio is None else np.array(ratio))


def judged(outputs, expected):
    truths = {name: SimpleNamespace(value=np.array(value)) for name, value in expected.items()}
    return SimpleNamespace(outputs=outputs, case=SimpleNamespace(expected=truths))


@pytest.mark.parametrize(
    ("off", "ratio", "kept"),
    [
        ([1.0], [9.0], True),  # as far as a 32nd of what the values of the call before change
        ([0.99], [9.0], False),
        ([32.5], [9.0], True),  # beyond it by twice what a result may be off
        ([32.6], [9.0], False),
        ([32.0, 0.0], [1.5, 1.0], True),  # what is just within the bound is not wrong
        ([32.0, 0.5, 0.5, 32.0], [9.0, 9.0, 9.0, 9.0], True),  # half of them
        ([32.0, 0.5, 0.5], [9.0, 9.0, 9.0], False),
    ],
)
def test_what_is_kept_is_as_far_off_as_the_call_before(off, ratio, kept, monkeypatch):
    monkeypatch.setattr(calls.judge, "allowed", lambda want: np.full(want.value.shape, 0.25))
    before, want = judged({}, {"y": [32.0] * len(off)}), judged({"y": results(off, ratio)}, {"y": [0.0] * len(off)})
    assert calls._kept(before, want, "y") == kept


@pytest.mark.parametrize("unjudged", [None, results([1.0], None)])
def test_what_is_beyond_its_bound_in_one_call_alone(unjudged):
    usual = judged({"a": unjudged, "y": results([0.0, 0.0, 0.0], [0.5, 1.0, 0.0])}, {})
    now = judged({"a": unjudged, "y": results([1.0, 2.0, 7.0], [1.0, 1.5, 9.0])}, {"a": [0.0], "y": [1.0, 1.0, 1.0]})
    (found,) = held.over_bound(usual, now, "why")
    assert (found.output, found.index) == ("y", (2,))
    assert found.words == "y[2] is 7, expected 1, why; 2 of 3 elements are wrong"
    wrong = judged({"y": results([0.0], [1.5])}, {})
    assert list(held.over_bound(wrong, now, "why")) == []
    assert list(held.over_bound(usual, judged({"y": results([1.0], [1.0])}, {"y": [1.0]}), "why")) == []
    assert list(held.over_bound(judged({}, {}), now, "why")) == []
    little = judged({"y": results([2.0], [1.5])}, {"y": [1.0]})
    assert [one.output for one in held.over_bound(usual, little, "why")] == ["y"]


def test_a_case_in_new_tensors_keeps_its_poison_and_one_in_the_same_counts_versions():
    run, other = examined(right)
    assert held.built(replace(run, case=replace(run.case, poison=7.0)), other).poison == 7
    before = {name: run.case.arguments[name]._version for name in ("x", "weight")}
    for name, uncounted in (("x", {"uncounted": True}), ("weight", {})):
        changed = held.built(run, {name: other[name]})
        now = held.placed(run.case, changed, **uncounted).arguments[name]
        assert torch.equal(now, changed.arguments[name])
        assert (now._version == before[name]) is (name == "x")
