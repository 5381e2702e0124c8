"""The fingerprint: right on emulated and real kernels, and silent where the evidence is not sufficient."""

import doctest
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import emulations as em
import pytest
import torch

from verify_norm.auditing.fingerprint import probing
from verify_norm.auditing.fingerprint.order import leaves_of
from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.auditing.fingerprint.statement import NAMES, UNDECIDED, disagreements
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading.registry import load, ready

SILENT = None
LN, RMS, BWD = "layernorm_fwd", "rmsnorm_fwd", "layernorm_bwd"
BF16 = "bfloat16"
PLAIN = {
    "row accumulator": "float32",
    "divisor": "N",
    "eps place": "inside",
    "eps value": "as given",
    "statistics": "float32",
    "deterministic": "yes",
    "batch invariant": "yes",
}
GRADIENT = {
    "row accumulator": "float32",
    "dbias accumulator": "float32",
    "dbias partials": "float32",
    "dweight accumulator": "float32",
    "dweight partials": "float32",
    "statistics source": "given",
    "used statistics": "float32",
    "xhat": "not rounded",
    "deterministic": "yes",
    "batch invariant": "yes",
}
L2_PLAIN = {**PLAIN, "divisor": None, "row order": "8 lanes interleaved (sequential), then sequential"}
LN_PLAIN = {**PLAIN, "variance": "two_pass", "form": "centred", "fma": "separate", "row order": "folded in halves"}
LANES = "8 lanes interleaved (sequential), then folded in halves"


def l2norm(x, eps, normalized_shape, how=""):
    square = x.float().square().sum(-1, keepdim=True)
    rstd = 1 / (square.sqrt() + eps) if how == "outside" else (square + eps).rsqrt()
    rstd = rstd.to(torch.bfloat16 if how == "narrow" else rstd.dtype).float()
    return (x.float() * rstd).to(x.dtype), rstd.reshape(-1)


def l2norm_bwd(dy, x, rstd, eps, normalized_shape):
    rows, square = x.float(), x.float().square().sum(-1)
    xhat, r = rows * (square + eps).rsqrt()[:, None], (square + eps).rsqrt()[:, None]
    return ((r * (dy.float() - xhat * (dy.float() * xhat).sum(-1, keepdim=True))).to(x.dtype),)


@dataclass(frozen=True)
class Example:
    """A kernel, the values of its fingerprint by "name" or "name/dtype of x", and the promises that it breaks."""

    op: str
    run: Callable[..., object]
    expected: dict[str, str | None]
    broken: str = ""


EMULATED = {
    "L2Norm": Example("l2norm_fwd", l2norm, L2_PLAIN),
    "L2Norm, eps beside the root": Example(
        "l2norm_fwd", partial(l2norm, how="outside"), {"eps place": "outside", "eps value": "as given", "divisor": None}
    ),
    "L2Norm, rstd in bfloat16": Example(
        "l2norm_fwd", partial(l2norm, how="narrow"), {"eps place": "inside", "statistics": BF16}, "stats=float32"
    ),
    "L2Norm's backward, statistics recomputed": Example(
        "l2norm_bwd", l2norm_bwd, {"row accumulator": "float32", "statistics source": "recomputed"}
    ),
    "two passes, sequential": Example(
        LN,
        em.layernorm_fwd(total=em.sequential),
        {**LN_PLAIN, "row order": "sequential", "long row sum": "sequential"},
        "summation=blocked",
    ),
    "one pass": Example(
        LN,
        em.layernorm_fwd(total=em.pairwise, variance="one_pass"),
        {**LN_PLAIN, "variance": "one_pass", "row order": "pairwise", "long row sum": "in parts"},
        "variance=centered",
    ),
    "Welford, which looks like two passes": Example(
        LN, em.layernorm_fwd(variance="welford"), {**LN_PLAIN, "variance": "welford", "row order": SILENT}
    ),
    "shifted, which looks like Welford": Example(
        LN,
        em.layernorm_fwd(total=em.lanes, variance="shifted"),
        {**LN_PLAIN, "variance": "shifted", "row order": SILENT},
        "variance=centered",
    ),
    "float64 inside": Example(
        LN,
        em.layernorm_fwd(total=em.pairwise, acc="float64"),
        {**PLAIN, "row accumulator": "float64", "variance": "centered", "row order": "pairwise", "form": SILENT},
    ),
    "one pass in float64, which looks centred": Example(
        LN,
        em.layernorm_fwd(acc="float64", variance="one_pass"),
        {**PLAIN, "row accumulator": "float64", "variance": "one_pass"},
        "variance=centered",
    ),
    "float64 inside, statistics saved in bfloat16": Example(
        LN,
        em.layernorm_fwd(acc="float64", kept=BF16),
        {**PLAIN, "row accumulator": "float64", "variance": "centered", "statistics": BF16},
        "stats=float32",
    ),
    "statistics saved in bfloat16 after y": Example(
        LN,
        em.layernorm_fwd(kept=BF16),
        {**PLAIN, "variance": "two_pass", "statistics": BF16, "form": "centred", "fma": SILENT},
        "stats=float32",
    ),
    "bfloat16 sums": Example(
        LN,
        em.layernorm_fwd(total=em.runs, sums=BF16),
        {**PLAIN, "row accumulator": BF16, "variance": SILENT, "row order": "runs of 16 (sequential), then pairwise"},
        "accumulate=float32",
    ),
    "float16 sums": Example(
        LN,
        em.layernorm_fwd(total=em.runs, sums="float16"),
        {**PLAIN, "row accumulator": "float16", "variance": SILENT},
        "accumulate=float32",
    ),
    "all in bfloat16": Example(
        LN,
        em.layernorm_fwd(acc=BF16),
        {**PLAIN, "row accumulator": BF16, "statistics": BF16, "variance": SILENT, "form": SILENT},
        "accumulate=float32 stats=float32",
    ),
    "N − 1": Example(LN, em.layernorm_fwd(ddof=1), {**LN_PLAIN, "divisor": "N-1", "xhat/bfloat16": SILENT}),
    "eps outside": Example(LN, em.layernorm_fwd(eps_at="outside"), {**LN_PLAIN, "eps place": "outside"}),
    "eps of its own": Example(LN, em.layernorm_fwd(eps_is=1e-5), {**LN_PLAIN, "eps value": "1e-05 whatever is given"}),
    "no eps": Example(LN, em.layernorm_fwd(eps_is=0), {**LN_PLAIN, "eps value": "none", "eps place": SILENT}),
    "eps on the sum": Example(
        LN, em.layernorm_fwd(eps_at="on_sum"), {**LN_PLAIN, "eps value": "0.0625 times what is given"}
    ),
    "clamped by eps": Example(LN, em.layernorm_fwd(eps_at="clamped"), {**LN_PLAIN, "eps place": "clamped"}),
    "x·a + b": Example(LN, em.layernorm_fwd(form="expanded"), {**LN_PLAIN, "form": "expanded"}, "expanded=False"),
    "fma(x, a, b)": Example(
        LN, em.layernorm_fwd(form="expanded fused"), {**LN_PLAIN, "form": "expanded", "fma": "fused"}, "expanded=False"
    ),
    "fma(x̂, w, b)": Example(LN, em.layernorm_fwd(form="fused"), {**LN_PLAIN, "fma": "fused"}),
    "y alone": Example(
        LN,
        em.layernorm_fwd(returns=1, total=em.lanes),
        {**LN_PLAIN, "row order": LANES, "statistics": SILENT, "fma": SILENT},
    ),
    "y alone, x·a + b": Example(
        LN,
        em.layernorm_fwd(returns=1, form="expanded"),
        {**PLAIN, "statistics": SILENT, "variance": SILENT, "form": "expanded"},
        "expanded=False",
    ),
    "y alone, fma(x, a, b), which looks like a wider mean": Example(
        LN,
        em.layernorm_fwd(returns=1, form="expanded fused"),
        {**PLAIN, "statistics": SILENT, "variance": SILENT, "form": SILENT},
    ),
    "y alone, Welford": Example(
        LN,
        em.layernorm_fwd(returns=1, variance="welford"),
        {**PLAIN, "row accumulator": SILENT, "statistics": SILENT, "variance": "welford", "row order": SILENT},
    ),
    "Llama's order": Example(
        RMS,
        em.rmsnorm_fwd(early=True, total=em.sequential),
        {**PLAIN, "xhat/bfloat16": "rounded", "row order": "sequential", "variance": SILENT, "form": SILENT},
        "xhat=None",
    ),
    "Gemma's order": Example(
        RMS, em.rmsnorm_fwd(total=em.pairwise), {**PLAIN, "xhat/bfloat16": "not rounded", "row order": "pairwise"}
    ),
    "squares in float16": Example(
        RMS, em.rmsnorm_fwd(sums="float16"), {**PLAIN, "row accumulator": "float16"}, "accumulate=float32"
    ),
    "squares in bfloat16": Example(
        RMS,
        em.rmsnorm_fwd(sums=BF16, total=em.lanes),
        {**PLAIN, "row accumulator": BF16, "row order": LANES},
        "accumulate=float32",
    ),
    "squares in float64": Example(RMS, em.rmsnorm_fwd(acc="float64"), {**PLAIN, "row accumulator": "float64"}),
    "y alone of RMSNorm": Example(
        RMS, em.rmsnorm_fwd(returns=1, total=em.lanes), {**PLAIN, "row order": LANES, "statistics": SILENT}
    ),
    "sums over rows in a row": Example(
        BWD,
        em.layernorm_bwd(columns=em.sequential, total=em.pairwise),
        {
            **GRADIENT,
            "row order": "pairwise",
            "dbias order": "sequential",
            "dweight order": "sequential",
            "long dbias sum": "sequential",
        },
        "summation=blocked",
    ),
    "partial sums in bfloat16": Example(
        BWD,
        em.layernorm_bwd(columns=em.narrow_partials),
        {
            **GRADIENT,
            "dbias partials": BF16,
            "dweight partials": BF16,
            "dbias order": "runs of 16 (sequential), then sequential",
        },
        "partials=float32",
    ),
    "float64 sums of gradients": Example(
        BWD,
        em.layernorm_bwd(columns=em.lanes, acc="float64"),
        {
            **GRADIENT,
            **dict.fromkeys([n for n in GRADIENT if n.endswith(("accumulator", "partials"))], "float64"),
            "dbias order": LANES,
            "dweight order": LANES,
        },
    ),
    "bfloat16 sums of gradients": Example(
        BWD,
        em.layernorm_bwd(columns=em.lanes, sums=BF16),
        {
            **GRADIENT,
            **dict.fromkeys([n for n in GRADIENT if n.endswith(("accumulator", "partials"))], BF16),
            "dbias order": LANES,
        },
        "accumulate=float32 partials=float32",
    ),
    "statistics rounded on the way": Example(
        BWD, em.layernorm_bwd(stats=BF16), {**GRADIENT, "used statistics": BF16}, "stats=float32"
    ),
    "x̂ rounded before dy": Example(BWD, em.layernorm_bwd(early=BF16), {**GRADIENT, "xhat": "rounded"}, "xhat=None"),
    "statistics recomputed": Example(
        BWD, em.layernorm_bwd(recompute=True), {**GRADIENT, "statistics source": "recomputed"}
    ),
    "another order at every run": Example(
        BWD,
        em.layernorm_bwd(columns=em.shuffled),
        {**GRADIENT, "deterministic": "no", "dbias order": SILENT, "dweight order": SILENT},
        "deterministic=True",
    ),
    "compensated sums, which are no tree": Example(
        BWD, em.layernorm_bwd(columns=em.kahan), {**GRADIENT, "dbias order": SILENT, "long dbias sum": SILENT}
    ),
}

TWO_STAGES = "runs of 8 (folded in halves), then folded in halves"
REAL = {
    "layernorm_fwd": {**LN_PLAIN, "long row sum": "in parts", "xhat/bfloat16": "not rounded"},
    "layernorm_bwd": {**GRADIENT, "row order": "pairwise", "long dbias sum": "in parts"},
    "rmsnorm_fwd": {**PLAIN, "row order": "folded in halves", "xhat/bfloat16": "not rounded"},
    "groupnorm_fwd": {**LN_PLAIN, "row order": "runs of 16 (folded in halves), then folded in halves"},  # by channel
    "add_rmsnorm_bwd": {k: v for k, v in GRADIENT.items() if not k.startswith("dbias")},
    "layernorm_fwd_torch": {**PLAIN, "form": "centred"},
    "layernorm_bwd_torch": {
        **GRADIENT,
        "statistics source": "recomputed",
        "row order": LANES,
        "used statistics/bfloat16": BF16,
    },
    "rmsnorm_fwd_torch": {**PLAIN, "statistics": SILENT, "xhat/bfloat16": "not rounded"},
    "rmsnorm_bwd_torch": {**{k: v for k, v in GRADIENT.items() if "dbias" not in k}, "statistics source": "recomputed"},
    "l2norm_fwd": {**L2_PLAIN, "row order": "folded in halves"},
    "l2norm_bwd": {"row accumulator": "float32", "row order": "folded in halves", "statistics source": "given"},
    "groupnorm_fwd_torch": {**PLAIN, "form": "expanded"},
    "groupnorm_bwd_torch": {
        **{k: v for k, v in GRADIENT.items() if k != "batch invariant"},  # vectors and remainders differ in dx
        "statistics source": "recomputed",
        "used statistics/bfloat16": BF16,
    },
}
ZOO_SAYS = {
    "A17_onepass_variance": {"variance": "one_pass", "divisor": "N"},
    "A18_fp16_sumsq": {"row accumulator": "float32"},  # only where x is float16, which is looked at if bfloat16 is not
    "A19_onepass_variance_clipped": {"variance": "one_pass"},
    "A20_stats_saved_bf16_fwd": {"statistics": "float32", "statistics/bfloat16": BF16},
    "A24_eps_outside_sqrt": {"eps place": "outside"},
    "U02_llama_order": {"xhat/bfloat16": "rounded", "statistics": "float32"},
    "U02_gemma_order": {"xhat/bfloat16": "not rounded"},
    "U03_shifted_onepass": {"variance": "shifted"},
    "U04_library_var_mean": {"variance": "centered", "row accumulator": "float64"},
    "U12_same_value_by_many": {"row accumulator": "float32", "row order": SILENT},  # it takes few rows
    "A21_dw_sum_bf16": {"dweight partials": "float32", "dweight partials/bfloat16": BF16},
    "U09_exact_zero": {"row accumulator": "float64", "dbias accumulator": "float64", "statistics source": "given"},
}


@cache
def loaded(name):
    return fingerprint(load(name))


def differences(found, expected):
    """The values of the fingerprint that differ from the expected ones."""
    wrong = {}
    for key, want in expected.items():
        name, _, dtype = key.partition("/")
        assert name in NAMES
        got = found.value(name, dtype or "float32")
        if got != want:
            wrong[key] = got
    return wrong


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("what", EMULATED)
def test_an_emulated_kernel_has_its_fingerprint_and_breaks_its_promises(what):
    example = EMULATED[what]
    kernel = em.kernel(example.op, example.run)
    found = fingerprint(kernel)
    assert differences(found, example.expected) == {}
    lines = disagreements(kernel.contract, found)
    broken = {line.split(", and the ")[0].removeprefix("the contract says ") for line in lines}
    assert {promise for line in broken for promise in line.split(", ")} == set(example.broken.split()), lines
    for statement in found.statements:
        assert statement.evidence
        assert (statement.said == UNDECIDED) == (statement.confidence == 0)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_kernel_has_its_fingerprint_and_keeps_its_contract(name):
    found = loaded(name)
    assert differences(found, REAL[name]) == {}
    float32 = replace(found, statements=tuple(s for s in found.statements if s.dtype == "float32"))
    lines = disagreements(load(name).contract, float32)  # in half precision torch keeps less than in float32
    # torch sums the rows one by one, shared among its threads: with one thread that is no blocked sum
    assert [line for line in lines if not (name.endswith("_torch") and "sequential" in line)] == []


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO_SAYS)
def test_a_kernel_of_the_zoo_has_its_fingerprint(name):
    example = ZOO[name]
    found = fingerprint(ready(example.kernel))
    assert differences(found, ZOO_SAYS[name]) == {}
    if not example.wrong:
        assert disagreements(example.kernel.contract, found) == ()


@pytest.mark.slow
def test_the_tree_of_our_dbias_has_its_two_stages():
    found = loaded("layernorm_bwd").of("dbias order")
    assert found.said == TWO_STAGES
    assert found.confidence > 0.95
    assert "2016 of 2016 sums" in found.evidence
    assert sorted(leaves_of(found.tree)) == list(range(64))


def fails(x, weight, bias, eps):
    raise RuntimeError("no")


def ones(x, weight, bias, eps):
    return torch.ones_like(x)


def nans(x, weight, bias, eps):
    return torch.full_like(x, torch.nan), x[:, 0] * torch.nan, x[:, 0] * torch.nan


def noisy(x, weight, bias, eps):
    return torch.randn_like(x), torch.randn(len(x)), torch.rand(len(x))


@pytest.mark.parametrize("function", [fails, ones, nans, noisy])
def test_a_function_that_is_no_norm_gets_no_false_statement(function):
    found = fingerprint(em.kernel(LN, function))
    decided = {s.name: s.said for s in found.statements if s.said != UNDECIDED}
    deterministic, invariant = ("no", "no") if function is noisy else ("yes", "yes")
    allowed = {"deterministic": deterministic, "batch invariant": invariant}
    if function is noisy:
        allowed["statistics"] = "float32"  # which is true of what it returns
    assert decided.items() <= allowed.items()


def test_a_kernel_of_one_dtype_and_few_outputs():
    def picky(x, weight, eps):
        assert x.dtype == torch.float16
        return em.forward(x, weight, None, eps, False, returns=1)[0]

    kernel = replace(em.kernel(RMS, picky), dtypes=("float16",))
    found = fingerprint(kernel)
    assert {s.name for s in found.statements if s.said != UNDECIDED} == {"xhat"}
    assert found.value("xhat", "float16") == "not rounded"


def test_a_kernel_that_rejects_a_negative_eps_hides_its_sum_of_squares():
    def proper(x, weight, eps):
        assert eps >= 0
        return em.forward(x, weight, None, eps, False)

    found = fingerprint(em.kernel(RMS, proper))
    assert found.value("row accumulator") is None
    assert found.value("eps place") == "inside"


def test_batchnorm_has_no_fingerprint():
    assert fingerprint(load("batchnorm_fwd")).statements == ()


def test_a_kernel_without_float32():
    kernel: Kernel = replace(load("rmsnorm_fwd"), dtypes=(BF16,))
    found = fingerprint(kernel)
    assert found.value("row accumulator", BF16) == "float32"
    assert all(s.dtype == BF16 for s in found.statements if s.said != UNDECIDED)


@pytest.mark.slow
def test_every_name_is_explained():
    names = {s.name for name in (LN, BWD) for s in loaded(f"{name}_torch").statements}
    assert names <= set(NAMES)


@pytest.mark.parametrize("how", ["by count", "by place"])
def test_rows_that_depend_on_other_rows(how):
    def run(x, weight, bias, eps):
        y, mean, rstd = em.forward(x, weight, bias, eps, True)
        if how == "by count" and len(x) < 10:
            rstd = torch.nextafter(rstd, rstd * 2)
        elif how == "by place":
            rstd[0] = torch.nextafter(rstd[0], rstd[0] * 2)
        return y, mean, rstd

    found = fingerprint(em.kernel("layernorm_fwd", run))
    assert found.value("batch invariant") == "no"
    assert disagreements(Contract(), found) == ()
    (line,) = disagreements(Contract(batch_invariant=True), found)
    assert line.startswith("the contract says batch_invariant=True, and the batch invariant is no: ")


def test_doctests():
    assert doctest.testmod(probing).failed == 0
