"""The memory check: kernels whose values are right and whose manners are not, and unusual ones that do no harm."""

import ctypes
from dataclasses import replace

import pytest
import torch
from norms import layernorm_bwd

from verify_norm.cases import make
from verify_norm.checks import CHECKS, memory
from verify_norm.core.contract import Contract
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.run import Damage, Run
from verify_norm.core.settings import Settings
from verify_norm.core.spec import FURTHER, CaseSpec
from verify_norm.loading.registry import load, load_directions
from verify_norm.running.execute import execute
from verify_norm.search.examine import examine
from verify_norm.search.search import search

SPEC = CaseSpec(shape=(4, 6), dtype="bfloat16")
MANY = tuple(name for name in FURTHER if name not in ("effects", "modes"))  # which hang on no layout
STRIDED = replace(SPEC, x_layout="row_strided", dy_layout="every_other")


backward = layernorm_bwd("float64")
ALONE = ("signature", "accuracy", "statistics", "nonfinite", "gradient", "memory", "determinism")


def found(run, spec=SPEC, op="layernorm_bwd", names=ALONE, **fields):
    """What these checks say of one case, by (check, output)."""
    kernel = Kernel("k", op, run=run, **fields)
    result = execute(kernel, make.case(spec, OPS[op], kernel.contract))
    checks = [c for c in map(CHECKS.get, names) if c.applies(OPS[op]) and c.looks(result)]
    said = [f for c in checks for f in c.function(result) if isinstance(f, Finding)]
    return {(f.check, f.output): f.message for f in said}


def poke(tensor, element, value=3.0):
    """Write beyond what torch would let: at an element counted from the tensor's first, in memory order."""
    size = tensor.element_size()
    bits = torch.tensor([value], dtype=tensor.dtype).view(torch.uint8)
    ctypes.memmove(tensor.data_ptr() + element * size, bits.data_ptr(), size)


def in_own(tensor, make=torch.empty_like):
    """The same values in a buffer of the kernel's."""
    own = make(tensor)
    return own.copy_(tensor)


def writes(where, **where_else):
    """A right kernel that also writes one element of dx's own buffer, so many elements from its first."""

    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *rest = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        dx = in_own(dx, **where_else)
        if dx.numel():  # else it has no address
            poke(dx, where(dx))
        return dx, *rest

    return kernel


@pytest.mark.parametrize("poison", ["nan", "finite"])
@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like, torch.Tensor.clone])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        (lambda dx: dx.numel(), "2 bytes behind the last element of dx, made by torch."),
        (lambda dx: dx.numel() + 40, "2 bytes behind the last element of dx"),
        (lambda dx: -1, "2 bytes before the first element of dx"),
    ],
)
def test_a_write_past_an_output(where, said, make, poison):
    messages = found(writes(where, make=make), replace(SPEC, poison=poison))
    assert set(messages) == {("memory", "dx")}
    assert said in messages["memory", "dx"]
    assert ("from 80 bytes off" in messages["memory", "dx"]) == (where(torch.empty(24)) == 64)


@pytest.mark.parametrize(("poison", "written"), [("nan", float("nan")), ("finite", 4096.0)])
def test_a_write_that_looks_like_the_poison_shows_in_the_other_one(poison, written):
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *rest = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        dx = in_own(dx)
        poke(dx, dx.numel(), written)
        return dx, *rest

    spec = replace(SPEC, poison=poison)
    assert found(kernel, replace(spec, further=()), names=("memory",)) == {}
    assert set(found(kernel, spec, names=("memory",))) == {("memory", "dx")}


def test_an_output_that_the_next_call_changes():
    kept = {}

    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, kept.setdefault(dweight.shape, torch.empty_like(dweight)).copy_(dweight), dbias

    said = "dweight of one call shares memory with dweight of the call before, and overwrites it"
    assert found(kernel) == {("memory", "dweight"): said}


def test_a_write_past_a_buffer_that_is_not_returned():
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        partial = torch.zeros(3, 6, dtype=torch.float32)
        poke(partial, 18)
        poke(partial, 19)
        lock = torch.zeros(2, dtype=torch.int32)
        poke(lock, -1, 1)
        return backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)

    messages = found(kernel)
    assert set(messages) == {("memory", None)}
    assert "8 bytes behind the last element of torch.zeros (3, 6) float32, allocation " in messages["memory", None]
    assert "4 bytes before the first element of torch.zeros (2,) int32, allocation " in messages["memory", None]


@pytest.mark.parametrize(
    ("name", "element", "said"),
    [
        ("x", 7, "2 bytes between the elements of x"),  # a row is 6 elements, the next begins at 9
        ("x", -1, "2 bytes before the first element of x, next to it"),
        ("x", 9 * 3 + 6 + 2, "2 bytes behind the last element of x, from 4 bytes off"),
        ("dy", 1, "2 bytes between the elements of dy"),
        ("weight", 6, "2 bytes behind the last element of weight"),
        ("mean", 4, "4 bytes behind the last element of mean"),
        ("x", 0, "2 bytes in x, an input"),
        ("rstd", 2, "4 bytes in rstd, an input"),
    ],
)
def test_a_write_into_an_argument(name, element, said):
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        result = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        poke({"x": x, "dy": dy, "weight": weight, "mean": mean, "rstd": rstd}[name], element)
        return result

    messages = found(kernel, STRIDED)
    assert set(messages) == {("memory", None)}
    assert said in messages["memory", None]
    assert messages["memory", None].count("bytes") <= 2


def test_scratch_work_in_an_input():
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        result = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        x.mul_(2)
        return result

    assert set(found(kernel)) == {("memory", None)}
    assert set(found(kernel, contract=Contract(inplace=("dx:x",)))) == set()
    assert set(found(kernel, contract=Contract(inplace=("dx:dy",)))) == {("memory", None)}


def test_partial_sums_that_are_not_written_times_zero():
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        unwritten = torch.empty(2, 6)  # as tl.load without `other`, then times a mask of 0
        return dx, (dweight + 0 * unwritten.sum(0)).to(dweight.dtype), dbias

    assert found(kernel, replace(SPEC, poison="finite", further=())) == {}  # 0 times 4096
    messages = found(kernel)
    assert ("memory", "dweight") in messages
    assert "nan with nan in memory that nobody wrote" in messages["memory", "dweight"]


def test_a_nan_that_is_absorbed_hides_nothing():
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        unwritten = torch.empty(2, 6)
        return dx, dweight, (dbias + unwritten.nan_to_num(0).sum(0)).to(dbias.dtype)

    messages = found(kernel)
    assert set(messages) == {("memory", "dbias")}
    assert "6 of 6 elements differ" in messages["memory", "dbias"]


@pytest.mark.parametrize("reads", ["gap", "guard", "integers"])
def test_reads_beside_the_elements(reads):
    def kernel(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        if reads == "gap":
            read = x.as_strided((1,), (1,), x.storage_offset() + 7)
        elif reads == "guard":
            read = weight.as_strided((1,), (1,), weight.storage_offset() + 6)
        else:
            read = torch.empty(1, dtype=torch.int32)
        return dx, dweight, torch.maximum(dbias, read.nan_to_num(0).to(dbias.dtype))

    assert ("memory", "dbias") in found(kernel, STRIDED)


def test_outputs_that_share_memory():
    def over_dy(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *rest = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dy.copy_(dx), *rest

    messages = found(over_dy)
    assert set(messages) == {("memory", None), ("memory", "dx")}
    assert "dx shares memory with dy, so writing to one changes the other" in messages["memory", "dx"]
    assert 'a contract may declare it: inplace=("dx:dy",)' in messages["memory", "dx"]
    assert "48 bytes in dy" in messages["memory", None]
    assert found(over_dy, contract=Contract(inplace=("dx:dy",))) == {}
    assert found(over_dy, STRIDED, contract=Contract(inplace=("dx:dy",))) == {}

    def view_of_x(x, weight, bias, eps, normalized_shape):
        return x.view(x.shape), *torch.native_layer_norm(x, normalized_shape, weight, bias, eps)[1:]

    assert ("memory", "y") in found(view_of_x, op="layernorm_fwd")

    def together(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, _ = backward(dy.abs(), x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, dweight, dweight

    assert ("memory", "dbias") in found(together)


def interleaved(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    """dweight and dbias in one buffer, by turns: their ranges overlap, they do not."""
    dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
    return dx, *torch.stack([dweight, dbias], -1).unbind(-1)


def view_of_larger(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    dx, *rest = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
    buffer = torch.empty(dx.numel() + 100, dtype=dx.dtype)
    buffer[50 : 50 + dx.numel()] = dx.reshape(-1)
    return buffer[50 : 50 + dx.numel()].view(dx.shape), *rest


def partials(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
    """Zeroed partial sums, contiguous copies, a buffer that grows, one that is only partly used."""
    x, dy = x.contiguous(), dy.contiguous()
    dx, dweight, dbias = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
    total = torch.zeros(5, 6)
    total[1] = dbias
    grown = torch.empty(2, dtype=torch.float64)
    grown.resize_(6).copy_(dweight)
    unused = torch.empty(1000)
    unused[:6] = total.sum(0)
    return dx, grown.to(dweight.dtype), unused[:6].to(dbias.dtype)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("kernel", [backward, interleaved, view_of_larger, partials])
@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(STRIDED, further=MANY),
        replace(SPEC, poison="finite", dy_layout="expanded", further=MANY),
        replace(SPEC, x_layout="far", dtype="float16", further=MANY),
    ],
)
def test_unusual_manners_that_do_no_harm(kernel, spec):
    assert found(kernel, spec, names=tuple(CHECKS)) == {}


def test_what_differs_by_itself_is_not_a_matter_of_memory():
    generator = torch.Generator().manual_seed(0)

    def noisy(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, *rest = backward(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        flips = torch.randint(0, 2, dx.shape, generator=generator)
        return (dx.float() * (1 + flips * 2.0**-7)).to(dx.dtype), *rest

    checks = {check for check, _ in found(noisy)}
    assert "determinism" in checks
    assert "memory" not in checks


def test_offsets_of_32_bits_read_a_wrong_value_and_do_not_crash():
    def wrapped(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        """Rows at row·stride in 32 bits, signed, as a kernel has them that forgets to widen one of the two."""
        offsets = (torch.arange(x.shape[0], dtype=torch.int32) * x.stride(0)).to(torch.int32).tolist()
        rows = [x.as_strided(x.shape[1:], x.stride()[1:], x.storage_offset() + offset) for offset in offsets]
        return backward(dy, torch.stack(rows), weight, bias, mean, rstd, eps, normalized_shape)

    spec = replace(SPEC, x_layout="far")
    assert found(wrapped) == {}
    assert found(backward, spec) == {}
    for shape in ((2, 16), (4, 12), (3, 2, 8)):
        assert ("accuracy", "dx") in found(wrapped, replace(spec, shape=shape))


def test_reduced_and_reported(few_corners):
    few_corners(slice(12))
    settings = Settings(examples=0, seconds=300, checks=("memory",))  # a loaded machine makes it small too
    report = search(Kernel("k", "layernorm_bwd", run=writes(lambda dx: dx.numel())), settings)
    (one,) = report.findings
    assert (one.check, one.output) == ("memory", "dx")
    assert one.spec.shape == (1,)
    assert "4 bytes behind the last element of dx, made by torch.empty_like (1,) float32, next to it" in one.message


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm_bwd", "layernorm_bwd_locked", "rmsnorm_fwd", "groupnorm_bwd"])
@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 6, 2)])
def test_our_own_kernels_far_apart(name, shape):
    kernel = load(name)
    groups = 2 if "group" in kernel.op else None
    spec = CaseSpec(shape=shape, dtype="float16", x_layout="far", dy_layout="far", num_groups=groups, further=MANY)
    assert found(kernel.run, spec, kernel.op, tuple(CHECKS), contract=kernel.contract) == {}


class Uninitialized(torch.nn.Module):
    """Its weight has no values before some are loaded, as that of a layer that only serves."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.empty(hidden_size)), eps

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Reset(Uninitialized):
    """Its weight has values, after its memory."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__(hidden_size, eps)
        torch.nn.init.ones_(self.weight)


@pytest.mark.parametrize("poison", ["nan", "finite"])
@pytest.mark.parametrize(("module", "said"), [(Uninitialized, ["a new module's weight holds what was"]), (Reset, [])])
def test_a_note_names_the_parameters_that_a_new_module_leaves_uninitialized(module, said, poison):
    kernel, _ = load_directions(module, "rmsnorm")
    spec = kernel.fit(CaseSpec((3, 8), poison=poison, further=("memory",)))
    examined = examine(kernel, spec, ("memory",), "cpu")
    assert examined.findings == ()
    assert [note[: len("a new module's weight holds what was")] for note in examined.notes] == said


def run_of(op="layernorm_bwd", autograd=False, **fields):
    """A run that says this of itself."""
    kernel = Kernel("k", op, run=print, autograd=autograd)
    return Run(kernel, make.case(SPEC, OPS[op], kernel.contract), {}, **fields)


def test_all_places_that_are_written_are_told_for_each_output():
    damage = [
        Damage("x", "in", 4, 0),
        Damage("dx", "before", 2, 0, "dx"),
        Damage("weight", "after", 2, 8),
        Damage("dy", "between", 6, 0),
    ]
    of_none, of_dx = memory._damaged(run_of(), damage)
    assert (of_none.output, of_dx.output) == (None, "dx")
    places = "4 bytes in x, an input; 2 bytes behind the last element of weight, from 8 bytes off; 6 bytes between"
    assert f"{places} the elements of dy" in of_none.message
    assert of_none.message.endswith("of dy"), "a gap is next to elements on both sides"
    assert of_dx.message.endswith("2 bytes before the first element of dx, next to it")


@pytest.mark.parametrize(
    ("op", "autograd", "told"),
    [("layernorm_bwd", False, True), ("layernorm_fwd", True, True), ("layernorm_bwd", True, False)],
)
def test_each_output_is_told_with_all_that_shares_its_memory(op, autograd, told):
    name = OPS[op].outputs[0].name
    overlaps = ((name, "x"), (name, "bias"), (name, name), ("another", "weight"))
    found = list(memory._shared(run_of(op, autograd, overlaps=overlaps)))
    assert [one.output for one in found] == [name, "another"] * told
    assert not told or found[0].message.startswith(f"{name} shares memory with x and bias, so")


def test_an_output_in_several_outputs_of_the_call_before():
    base = torch.zeros(8)
    first = run_of(returned={"dx": base[:4], "dweight": base[2:6], "dbias": torch.zeros(2)})
    second = run_of(returned={"dx": base[3:5], "dbias": torch.zeros(2)})
    (found,) = memory._reused(first, second)
    assert found.output == "dx"
    assert "shares memory with dx and dweight of the call before" in found.message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"weight": 3.0, "bias": 3.0}, ["bias, weight hold "]),
        ({"weight": 3.0, "bias": 1.0}, ["'s weight holds "]),
        ({"weight": 1.0}, []),
    ],
)
def test_a_note_names_all_parameters_that_are_as_their_memory_was(values, said):
    made = [{name: torch.full((2,), value) for name, value in values.items()}]
    notes = [note.words for note in memory._uninitialized(made, 3.0)]
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))
