"""Guard zones about what is allocated: they are found damaged, and change nothing else."""

import ctypes
import math
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verify_norm.cases import make, placement
from verify_norm.cases.corners import corners
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Damage
from verify_norm.kernels.adapters import torch_native
from verify_norm.loading.registry import load
from verify_norm.running import guards
from verify_norm.running.execute import bound

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


@pytest.mark.parametrize(("more", "damaged"), [(64, 0), (-64, 64)])
def test_an_argument_whose_storage_gets_another_size(more, damaged):
    x = torch.ones(64)
    given = guards.Arguments({"x": x})
    x.untyped_storage().resize_(x.untyped_storage().nbytes() + more)
    assert list(given.damage(())) == [Damage("x", "in", damaged, 0)] * bool(damaged)


def test_the_norm_operators_of_torch_that_ran_are_known():
    with guards.PoisonEmpty(math.nan) as mode:
        torch.nn.functional.layer_norm(torch.ones(2, 4), (4,))
    assert mode.operators.names == ("aten::native_layer_norm",)


def test_what_ends_where_another_begins_does_not_overlap_it_and_of_no_elements_nothing_does():
    memory = torch.zeros(8)
    assert list(guards.overlaps({"y": memory[:4], "z": memory[4:]}, {})) == []
    assert list(guards.overlaps({"y": memory[4:], "z": memory[:4]}, {})) == []
    assert guards._reach(memory[2:2]) == range(0)
    assert guards._reach(torch.eye(3).to_sparse()) == range(0)
    first = memory.data_ptr()
    assert guards._reach(memory[1:7:2]) == range(first + 4, first + 4 + 5 * 4)


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
        large = torch.empty(guards.LIMIT + 1, dtype=torch.uint8)
    assert far.isnan().all()  # its elements alone
    assert far.stride() == (2**31, 1)
    assert large.numel() == guards.LIMIT + 1
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


ROWS, PER_ROW, BYTES = 40, 208, 2  # of float16, behind and before a guard, with a gap behind each row
STEP = PER_ROW + placement.WHOLE
PLACES = {  # the index of the element in the storage that is written to: where it is, and how far off in elements
    "the first": (placement.GUARD, "in", 0),
    "the last": (placement.GUARD + (ROWS - 1) * STEP + PER_ROW - 1, "in", 0),
    "beside the first": (placement.GUARD - 1, "before", 0),
    "far before it": (0, "before", placement.GUARD - 1),
    "behind the last": (placement.GUARD + (ROWS - 1) * STEP + PER_ROW, "after", 0),
    "in the first gap": (placement.GUARD + PER_ROW, "between", 0),
    "in the middle of the last gap": (placement.GUARD + (ROWS - 1) * STEP - 2, "between", 1),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_write_into_an_argument_is_found_where_it_is(place, whole, monkeypatch):
    """Of a very large argument only the elements are compared. Those of one that may be overwritten may change."""
    monkeypatch.setattr(guards, "LIMIT", guards.LIMIT if whole else 1)
    at, where, off = PLACES[place]
    values = np.ones((ROWS, PER_ROW))
    given = {name: placement.place(values, "float16", "row_strided", math.nan, "cpu") for name in ("x", "y")}
    before = guards.Arguments({**given, "eps": 1e-5})
    assert list(before.damage(())) == []
    given["y"].as_strided((1,), (1,), at).fill_(7.0)
    seen = [Damage("y", where, BYTES, off * BYTES)] if whole or where == "in" else []
    assert list(before.damage(())) == list(before.damage(("x",))) == seen
    assert list(before.damage(("y",))) == ([] if where == "in" else seen)


@pytest.mark.parametrize(("more", "seen"), [(0, True), (-1, False)])
def test_of_an_argument_larger_than_the_limit_only_the_elements_are_compared(more, seen, monkeypatch):
    """A write behind the first element is one element off the next own one, before it."""
    memory = torch.zeros(9)
    monkeypatch.setattr(guards, "LIMIT", 36 + more)
    before = guards.Arguments({"x": memory[::4]})
    memory[1] = 7
    assert list(before.damage(())) == [Damage("x", "between", 4, 0)] * seen


@pytest.mark.parametrize("place", range(3))
def test_a_write_beside_an_argument_of_one_number(place):
    memory = torch.zeros(3)
    before = guards.Arguments({"x": memory[1]})
    memory[place] = 7
    assert list(before.damage(())) == [Damage("x", ("before", "in", "after")[place], 4, 0)]


def test_outputs_that_lie_in_each_other_or_in_arguments_overlap():
    x, y = torch.zeros(8), torch.zeros(8)
    outputs = {"y": y[:4], "mean": y[3:5], "rstd": x[7:], "dx": torch.zeros(8), "dbias": None}
    assert list(guards.overlaps(outputs, {"x": x, "eps": 1.0})) == [("mean", "y"), ("rstd", "x")]


@st.composite
def views(draw):
    """Where a view of 256 bytes lies: its type, shape, strides and offset."""
    dtype = draw(st.sampled_from([torch.uint8, torch.float16, torch.float64]))
    room = 256 // dtype.itemsize
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(0, 6), st.integers(0, 3)))
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    assume(extent <= room)
    return dtype, shape, strides, draw(st.integers(0, room - extent))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(views(), views())
def test_tensors_overlap_where_they_have_a_byte_in_common(first, second):
    memory = torch.zeros(256, dtype=torch.uint8)
    tensors = [
        memory.view(dtype).as_strided(shape, strides, offset) for dtype, shape, strides, offset in (first, second)
    ]
    own = []
    for tensor in tensors:  # its elements' bytes, one more dimension
        size = tensor.element_size()
        memory.zero_()
        strides = [stride * size for stride in tensor.stride()]
        memory.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size).fill_(1)
        own.append(memory.bool())
    common = bool((own[0] & own[1]).any())
    assert bool(list(guards.overlaps({"y": tensors[0]}, {"x": tensors[1]}))) == common


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 3), (5, 2), False),
        ((4, 3), (2, 3), True),
        ((4, 3), (3, 2), False),
        ((3, 2), (2, 5), False),
        ((2, 2, 2), (1, 3, 5), False),
        ((2, 2, 2), (1, 2, 3), True),
    ],
)
def test_elements_of_a_tensor_that_share_memory(shape, strides, overlaps, monkeypatch):
    """A tensor that is too large to tell has none, as far as it is known."""
    tensor = torch.zeros(64).as_strided(shape, strides)
    assert guards.overlaps_itself(tensor) is overlaps
    monkeypatch.setattr(guards, "COUNTED", tensor.numel())
    assert guards.overlaps_itself(tensor) is overlaps
    monkeypatch.setattr(guards, "COUNTED", tensor.numel() - 1)
    assert guards.overlaps_itself(tensor) is False


def test_tensors_that_are_misaligned_to_each_other_overlap_byte_by_byte():
    memory = bytearray(4096)
    first = torch.frombuffer(memory, dtype=torch.float32, count=40)[::2]
    second = torch.frombuffer(memory, dtype=torch.float32, count=100, offset=1)[::2]
    third = torch.frombuffer(memory, dtype=torch.uint8, count=200, offset=4)[::8]
    assert list(guards.overlaps({"y": first}, {"x": second})) == [("y", "x")]
    assert list(guards.overlaps({"y": first}, {"x": third})) == []


def test_content_is_on_the_device_of_its_tensor():
    for whole in (True, False):
        assert guards.content(torch.empty(3, device="meta"), whole).device.type == "meta"


def test_the_content_of_one_element_with_any_stride():
    one = torch.arange(6.0)[::2][1:2]
    assert one.stride() == (2,)
    assert bytes(guards.content(one, whole=False).tolist()) == np.float32(2.0).tobytes()
    assert guards.content(torch.arange(6.0)[::2], whole=False).numel() == 12
