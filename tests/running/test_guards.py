"""Guard zones about what is allocated: they are found damaged, and change nothing else."""

import ctypes
import math
import re
import warnings

import numpy as np
import pytest
import torch

from verify_norm.cases import make
from verify_norm.cases.corners import corners
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.kernels.adapters import torch_native
from verify_norm.loading.registry import load
from verify_norm.running import argument_writes, guards
from verify_norm.running.calling import bound

TRITON = (
    "layernorm_fwd", "layernorm_bwd", "layernorm_bwd_locked", "rmsnorm_fwd", "rmsnorm_bwd", "add_layernorm_fwd",
    "add_layernorm_bwd", "add_rmsnorm_fwd", "add_rmsnorm_bwd", "groupnorm_fwd", "groupnorm_bwd",
    "groupnorm_fwd_welford",
)  # fmt: skip
STOCK = (
    "layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "groupnorm_fwd", "groupnorm_bwd", "batchnorm_fwd",
    "batchnorm_bwd", "instancenorm_fwd", "instancenorm_bwd",
)  # fmt: skip


def test_every_way_to_allocate_is_guarded():
    """Of torch's operators, all that make a tensor of a shape and one value, or of none."""
    made = re.compile(r"aten::(new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?(\.(?!.*(out|names)).*)?")
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if made.fullmatch(name)}
    guarded = {str(overload).removeprefix("aten.").removesuffix(".default") for overload in guards.PoisonEmpty._FRESH}
    assert names - guarded == set()
    assert not [name for name in guarded if "out" in name or "names" in name]  # which make nothing, or named dimensions
    x = torch.ones(2, 3)
    ways = {
        "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
        **{name: lambda name=name: getattr(torch, name)((2, 3)) for name in ("empty", "zeros", "ones")},
        **{f"{name}_like": lambda name=name: getattr(torch, f"{name}_like")(x) for name in ("empty", "zeros", "ones")},
        **{f"new_{name}": lambda name=name: getattr(x, f"new_{name}")((2, 3)) for name in ("empty", "zeros", "ones")},
        "full": lambda: torch.full((2, 3), 2.0),
        "full_like": lambda: torch.full_like(x, 2.0),
        "new_full": lambda: x.new_full((2, 3), 2.0),
        "clone": x.clone,
        "to_copy": x.double,
    }
    for name, way in ways.items():
        with guards.PoisonEmpty(math.nan) as mode:
            tensor = way()
            ctypes.memset(tensor.data_ptr() + 6 * tensor.element_size(), 1, 4)
        (damage,) = mode.damage({"y": tensor})
        assert (damage.where, damage.count) == ("after", tensor.element_size()), name
        assert damage.buffer.startswith(f"y, made by torch.{name} "), damage.buffer


@pytest.mark.parametrize("poison", [math.nan, 4096.0])
def test_fresh_memory_is_poisoned_and_initialized_memory_is_not(poison):
    source = torch.ones(3, 4, dtype=torch.bfloat16)
    with guards.PoisonEmpty(poison):
        fresh = [
            torch.empty(3, 4),
            torch.empty_like(source),
            source.new_empty(5),
            torch.empty_strided((2, 3), (3, 1), dtype=torch.float16),
            source.new_empty_strided((2, 2), (2, 1)),
        ]
        clean = [torch.zeros(3), torch.ones(3), source * 2, torch.full((2,), 3.0), source.clone(), source.float()]
        integers = [torch.empty(4, dtype=dtype) for dtype in (torch.int32, torch.uint8, torch.bool)]
    for tensor in fresh:
        assert torch.equal(tensor.double().nan_to_num(-1), torch.full_like(tensor, poison).double().nan_to_num(-1))
    assert all(tensor.isfinite().all() and (tensor != 4096).all() for tensor in clean)
    assert [t.tolist()[0] for t in integers] == [7 if math.isnan(poison) else 113] * 2 + [True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, 4),
        lambda: torch.empty(2, 1, 5, dtype=torch.bfloat16),
        lambda: torch.empty_strided((2, 3), (7, 2), dtype=torch.float16),
        lambda: torch.empty_strided((3, 4), (0, 1)),
        lambda: torch.empty(2, 3, 4, 4, memory_format=torch.channels_last),
        lambda: torch.zeros(5, dtype=torch.int64),
        lambda: torch.full((2, 2), 1.5, dtype=torch.float64),
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.zeros(3, dtype=torch.bool),
        lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
        lambda: torch.arange(12.0).view(3, 4).t().clone(),
        lambda: torch.arange(12.0).view(3, 4).t().contiguous(),
        lambda: torch.arange(6).to(torch.float16),
        lambda: torch.empty(0, 3),
        lambda: torch.empty(()),
        lambda: torch.zeros(3, requires_grad=True),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.eye(3).to_sparse().clone(),
    ],
)
def test_a_guarded_tensor_is_like_any_other(make):
    plain = make()
    with guards.PoisonEmpty(7.0):
        guarded = make()
    for what in ("shape", "dtype", "layout", "device", "requires_grad", "is_leaf"):
        assert getattr(guarded, what) == getattr(plain, what)
    if plain.layout is torch.strided:
        assert (guarded.stride(), guarded.storage_offset()) == (plain.stride(), plain.storage_offset())
        assert guarded.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
        assert not guarded._is_view()
        assert guarded.data_ptr() % 64 == 0


def test_the_norm_operators_of_torch_that_ran_are_known():
    with guards.PoisonEmpty(math.nan) as mode:
        torch.nn.functional.layer_norm(torch.ones(2, 4), (4,))
    assert mode.operators.names == ("aten::native_layer_norm",)


def test_contents_are_kept():
    x = torch.arange(24.0).view(2, 3, 4)
    with guards.PoisonEmpty(math.nan):
        for made, like in (
            (x.permute(2, 0, 1).contiguous(), x.permute(2, 0, 1)),
            (x.clone(), x),
            (x[:, ::2, 1:].clone(), x[:, ::2, 1:]),
            (x.expand(2, 2, 3, 4).clone(), x.expand(2, 2, 3, 4)),
            (x.half(), x),
            (torch.full_like(x, 3), x * 0 + 3),
            (x.new_ones(2), torch.ones(2)),
        ):
            assert torch.equal(made.float(), like)


def test_a_guarded_tensor_may_grow():
    with guards.PoisonEmpty(math.nan) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that an output is resized
        kept = torch.arange(4.0).clone()
        kept.resize_(40)[4:] = 1.0
        out = torch.empty(1, 3)
        torch.add(torch.ones(5, 5), 1, out=out)
    assert kept[:5].tolist() == [0, 1, 2, 3, 1]
    assert out.tolist() == [[2.0] * 5] * 5
    assert list(made.damage({})) == []


def test_what_is_beside_a_tensor_that_grows_keeps_its_values():
    """With gaps or without: a copy has none."""
    with guards.PoisonEmpty(math.nan), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that an output is resized
        x, out = torch.empty_strided((3, 2), (2, 7)).copy_(torch.arange(6.0).view(3, 2)), torch.empty(1, 3)
        torch.add(x, 1, out=out)
    assert x.untyped_storage().nbytes() == 24
    assert x.stride() in ((2, 1), (1, 3))
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert out.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_what_is_huge_is_left_alone():
    with guards.PoisonEmpty(math.nan) as made:
        far = torch.empty_strided((2, 3), (2**31, 1), dtype=torch.float16)
        large = torch.empty(argument_writes.LIMIT + 1, dtype=torch.uint8)
    assert far.isnan().all()  # its elements alone
    assert far.stride() == (2**31, 1)
    assert large.numel() == argument_writes.LIMIT + 1
    assert list(made.damage({"y": far})) == []


@pytest.mark.parametrize(
    ("elements", "guarded"),
    [
        ((16,), [True]),
        ((17,), [False]),
        ((16, 16, 4), [True, True, False]),
        ((16, 12, 16, 4), [True, True, False, True]),  # a smaller one still has its guards
    ],
)
def test_what_is_larger_than_the_limits_has_no_guards(elements, guarded, monkeypatch):
    monkeypatch.setattr(guards, "LIMIT", 64)
    monkeypatch.setattr(guards, "HELD", 128)
    known = []
    with guards.PoisonEmpty(math.nan) as made:
        for count in elements:
            before = len(made._allocations)
            assert torch.zeros(count).tolist() == [0] * count
            known.append(len(made._allocations) > before)
    assert known == guarded


@pytest.mark.parametrize(("count", "poison", "poisoned"), [(16, 5432.5, True), (17, 6543.5, False)])
def test_what_has_no_guards_is_poisoned_if_its_elements_are_few(count, poison, poisoned, monkeypatch):
    monkeypatch.setattr(guards, "LIMIT", 64)
    with guards.PoisonEmpty(poison) as made:
        strided = torch.empty_strided((count,), (2,))
    assert made._allocations == []
    assert bool((strided == poison).all()) is poisoned


def test_damage_says_where():
    with guards.PoisonEmpty(4096.0) as made:
        first, second = torch.empty(3, 5, dtype=torch.float16), torch.zeros(4, dtype=torch.int32)
        words = (ctypes.c_uint16 * 32).from_address(first.data_ptr() - 16)
        words[7] = words[4] = 1  # the last before, and three before that
        words[8] = 1  # its own
        (ctypes.c_int32 * 8).from_address(second.data_ptr())[6] = 0
        np.asarray(second.numpy())[:] = 9
    assert list(made.damage({"dx": first.view(-1), "dweight": None, "dz": first})) == [
        guards.Damage("dx and dz, made by torch.empty (3, 5) float16", "before", 4, 0, "dx"),
        guards.Damage("torch.zeros (4,) int32, allocation 2", "after", 4, 8),
    ]


@pytest.mark.parametrize("poison", [math.nan, 4096.0])
@pytest.mark.parametrize("place", range(8))
def test_one_byte_of_one_guard_is_enough(place, poison):
    with guards.PoisonEmpty(poison) as made:
        some = [torch.empty(3), torch.zeros(2, dtype=torch.bool), torch.empty(5)]
        if place > 5:
            some.append(torch.ones(2, dtype=torch.complex128))  # as wide as no integer
    assert list(made.damage({})) == []
    assert made._intact() is (place <= 5)  # without a look at each
    number, side = divmod(place, 2)
    one = made._allocations[number]
    guard = one.base[one.front + one.extent :] if side else one.base[: one.front]
    guard.view(torch.uint8)[-1 if place % 3 else 0] ^= 3
    found = [(damage.buffer.rpartition(" ")[2], damage.where) for damage in made.damage({})]
    assert found == [(str(number + 1), ("before", "after")[side])]
    del some


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("poison", [math.nan, 4096.0])
def test_guards_on_a_gpu(poison):
    with guards.PoisonEmpty(poison) as made:
        first = torch.empty(3, 5, dtype=torch.bfloat16, device="cuda")
        second = torch.zeros(4, device="cuda")
        first.record_stream(torch.cuda.Stream())
    assert first.data_ptr() % 256 == second.data_ptr() % 256 == 0
    assert first.untyped_storage().nbytes() == 30
    assert list(made.damage({"dx": first})) == []
    allocation = made._allocations[0]
    allocation.base[allocation.front + allocation.extent] = 1
    assert list(made.damage({"dx": first})) == [
        guards.Damage("dx, made by torch.empty (3, 5) bfloat16", "after", 2, 0, "dx")
    ]


def test_torch_compile_compiles():
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def double(x):
        y = torch.empty_like(x)
        return y.copy_(x) * 2

    with guards.PoisonEmpty(math.nan):
        assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert len(traced) == 1


def results(kernel, spec, *, guarded):
    arguments = bound(kernel, make.case(spec, OPS[kernel.op], kernel.contract))
    try:
        if guarded:
            with guards.PoisonEmpty(math.nan) as made:
                returned = kernel.run(**arguments)
            assert list(made.damage({})) == []
        else:
            returned = kernel.run(**arguments)
    except Exception as error:
        return [type(error).__name__]
    returned = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [
        None
        if t is None
        else (t.dtype, t.shape, t.stride(), t.detach().contiguous().view(-1).view(torch.uint8).tolist())
        for t in returned
    ]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*TRITON, *(f"{name} of torch" for name in STOCK)])
def test_results_do_not_depend_on_the_guards(name):
    op, _, stock = name.partition(" ")
    if stock:
        function = getattr(torch_native, f"{op}_torch", None) or getattr(torch_native, op)
        kernel = Kernel(op, op, run=function)
    else:
        kernel = load(name)
    table = [
        spec for spec in corners(OPS[kernel.op], ("float32", "float16", "bfloat16")) if math.prod(spec.shape) < 600
    ]
    if name == "batchnorm_bwd of torch":  # it reads these as if they were contiguous, past their end
        table = [
            spec
            for spec in table
            if {spec.weight_layout, spec.running_mean_layout, spec.running_var_layout} == {"contiguous"}
        ]
    for spec in table if stock else table[::5]:
        assert results(kernel, spec, guarded=True) == results(kernel, spec, guarded=False), spec
