"""The fingerprint: right on emulated and real kernels, silent where the evidence is weak; its findings; its trees."""

import doctest
import json
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from verify_norm.fingerprint import compare, order, precision, probing
from verify_norm.fingerprint import statement as statements
from verify_norm.fingerprint.compare import disagreements
from verify_norm.fingerprint.probing import fingerprint
from verify_norm.fingerprint.statement import NAMES, Fingerprint, Statement
from verify_norm.kernels.zoo import ZOO
from verify_norm.registry import load, ready
from verify_norm.spec import Contract, Kernel

from .fingerprint import emulations as em

SILENT = None
LN, RMS, BWD = "layernorm_fwd", "rmsnorm_fwd", "layernorm_bwd"
BF16 = "bfloat16"
PLAIN = {
    "row accumulator": "float32", "divisor": "N", "eps place": "inside", "eps value": "as given",
    "statistics": "float32", "deterministic": "yes", "batch invariant": "yes",
}  # fmt: skip
GRADIENT = {
    "row accumulator": "float32", "dbias accumulator": "float32", "dbias partials": "float32",
    "dweight accumulator": "float32", "dweight partials": "float32", "statistics source": "given",
    "used statistics": "float32", "xhat": "not rounded", "deterministic": "yes", "batch invariant": "yes",
}  # fmt: skip
LN_PLAIN = {**PLAIN, "variance": "two_pass", "form": "centred", "fma": "separate", "row order": "folded in halves"}
LANES = "8 lanes interleaved (sequential), then folded in halves"

# What a kernel is, what it is said to be ("name", or "name/type of x"), and which of its promises it breaks.
EMULATED = {
    "two passes, sequential": (
        LN, em.layernorm_fwd(total=em.sequential),
        {**LN_PLAIN, "row order": "sequential", "long row sum": "sequential"},
        "summation=blocked",
    ),
    "one pass": (
        LN, em.layernorm_fwd(total=em.pairwise, variance="one_pass"),
        {**LN_PLAIN, "variance": "one_pass", "row order": "pairwise", "long row sum": "in parts"}, "variance=centered",
    ),
    "Welford, which looks like two passes": (
        LN, em.layernorm_fwd(variance="welford"), {**LN_PLAIN, "variance": "welford", "row order": SILENT}, "",
    ),
    "shifted, which looks like Welford": (
        LN, em.layernorm_fwd(total=em.lanes, variance="shifted"),
        {**LN_PLAIN, "variance": "shifted", "row order": SILENT},
        "variance=centered",
    ),
    "float64 inside": (
        LN, em.layernorm_fwd(total=em.pairwise, acc="float64"),
        {**PLAIN, "row accumulator": "float64", "variance": "centered", "row order": "pairwise", "form": SILENT}, "",
    ),
    "one pass in float64, which looks centred": (
        LN, em.layernorm_fwd(acc="float64", variance="one_pass"),
        {**PLAIN, "row accumulator": "float64", "variance": "one_pass"}, "variance=centered",
    ),
    "float64 inside, statistics saved in bfloat16": (
        LN, em.layernorm_fwd(acc="float64", kept=BF16),
        {**PLAIN, "row accumulator": "float64", "variance": "centered", "statistics": BF16}, "stats=float32",
    ),
    "statistics saved in bfloat16 after y": (
        LN, em.layernorm_fwd(kept=BF16),
        {**PLAIN, "variance": "two_pass", "statistics": BF16, "form": "centred", "fma": SILENT}, "stats=float32",
    ),
    "bfloat16 sums": (
        LN, em.layernorm_fwd(total=em.runs, sums=BF16),
        {**PLAIN, "row accumulator": BF16, "variance": SILENT, "row order": "runs of 16 (sequential), then pairwise"},
        "accumulate=float32",
    ),
    "float16 sums": (
        LN, em.layernorm_fwd(total=em.runs, sums="float16"),
        {**PLAIN, "row accumulator": "float16", "variance": SILENT},
        "accumulate=float32",
    ),
    "all in bfloat16": (
        LN, em.layernorm_fwd(acc=BF16),
        {**PLAIN, "row accumulator": BF16, "statistics": BF16, "variance": SILENT, "form": SILENT},
        "accumulate=float32 stats=float32",
    ),
    "N − 1": (LN, em.layernorm_fwd(ddof=1), {**LN_PLAIN, "divisor": "N-1", "xhat/bfloat16": SILENT}, ""),
    "eps outside": (LN, em.layernorm_fwd(eps_at="outside"), {**LN_PLAIN, "eps place": "outside"}, ""),
    "eps of its own": (LN, em.layernorm_fwd(eps_is=1e-5), {**LN_PLAIN, "eps value": "1e-05 whatever is given"}, ""),
    "no eps": (LN, em.layernorm_fwd(eps_is=0), {**LN_PLAIN, "eps value": "none", "eps place": SILENT}, ""),
    "eps on the sum": (
        LN, em.layernorm_fwd(eps_at="on_sum"), {**LN_PLAIN, "eps value": "0.0625 times what is given"}, "",
    ),
    "clamped by eps": (LN, em.layernorm_fwd(eps_at="clamped"), {**LN_PLAIN, "eps place": "clamped"}, ""),
    "x·a + b": (LN, em.layernorm_fwd(form="expanded"), {**LN_PLAIN, "form": "expanded"}, "expanded=False"),
    "fma(x, a, b)": (
        LN, em.layernorm_fwd(form="expanded fused"), {**LN_PLAIN, "form": "expanded", "fma": "fused"}, "expanded=False",
    ),
    "fma(x̂, w, b)": (LN, em.layernorm_fwd(form="fused"), {**LN_PLAIN, "fma": "fused"}, ""),
    "y alone": (
        LN, em.layernorm_fwd(returns=1, total=em.lanes),
        {**LN_PLAIN, "row order": LANES, "statistics": SILENT, "fma": SILENT}, "",
    ),
    "y alone, x·a + b": (
        LN, em.layernorm_fwd(returns=1, form="expanded"),
        {**PLAIN, "statistics": SILENT, "variance": SILENT, "form": "expanded"}, "expanded=False",
    ),
    "y alone, fma(x, a, b), which looks like a wider mean": (
        LN, em.layernorm_fwd(returns=1, form="expanded fused"),
        {**PLAIN, "statistics": SILENT, "variance": SILENT, "form": SILENT}, "",
    ),
    "y alone, Welford": (
        LN, em.layernorm_fwd(returns=1, variance="welford"),
        {**PLAIN, "row accumulator": SILENT, "statistics": SILENT, "variance": "welford", "row order": SILENT}, "",
    ),
    "Llama's order": (
        RMS, em.rmsnorm_fwd(early=True, total=em.sequential),
        {**PLAIN, "xhat/bfloat16": "rounded", "row order": "sequential", "variance": SILENT, "form": SILENT},
        "xhat=None",
    ),
    "Gemma's order": (
        RMS, em.rmsnorm_fwd(total=em.pairwise), {**PLAIN, "xhat/bfloat16": "not rounded", "row order": "pairwise"}, "",
    ),
    "squares in float16": (
        RMS, em.rmsnorm_fwd(sums="float16"), {**PLAIN, "row accumulator": "float16"}, "accumulate=float32",
    ),
    "squares in bfloat16": (
        RMS, em.rmsnorm_fwd(sums=BF16, total=em.lanes), {**PLAIN, "row accumulator": BF16, "row order": LANES},
        "accumulate=float32",
    ),
    "squares in float64": (RMS, em.rmsnorm_fwd(acc="float64"), {**PLAIN, "row accumulator": "float64"}, ""),
    "y alone of RMSNorm": (
        RMS, em.rmsnorm_fwd(returns=1, total=em.lanes), {**PLAIN, "row order": LANES, "statistics": SILENT}, "",
    ),
    "sums over rows in a row": (
        BWD, em.layernorm_bwd(columns=em.sequential, total=em.pairwise),
        {**GRADIENT, "row order": "pairwise", "dbias order": "sequential", "dweight order": "sequential",
         "long dbias sum": "sequential"},
        "summation=blocked",
    ),
    "partial sums in bfloat16": (
        BWD, em.layernorm_bwd(columns=em.narrow_partials),
        {**GRADIENT, "dbias partials": BF16, "dweight partials": BF16,
         "dbias order": "runs of 16 (sequential), then sequential"},
        "partials=float32",
    ),
    "float64 sums of gradients": (
        BWD, em.layernorm_bwd(columns=em.lanes, acc="float64"),
        {**GRADIENT, **dict.fromkeys([n for n in GRADIENT if n.endswith(("accumulator", "partials"))], "float64"),
         "dbias order": LANES, "dweight order": LANES},
        "",
    ),
    "bfloat16 sums of gradients": (
        BWD, em.layernorm_bwd(columns=em.lanes, sums=BF16),
        {**GRADIENT, **dict.fromkeys([n for n in GRADIENT if n.endswith(("accumulator", "partials"))], BF16),
         "dbias order": LANES},
        "accumulate=float32 partials=float32",
    ),
    "statistics rounded on the way": (
        BWD, em.layernorm_bwd(stats=BF16), {**GRADIENT, "used statistics": BF16}, "stats=float32",
    ),
    "x̂ rounded before dy": (BWD, em.layernorm_bwd(early=BF16), {**GRADIENT, "xhat": "rounded"}, "xhat=None"),
    "statistics recomputed": (
        BWD, em.layernorm_bwd(recompute=True), {**GRADIENT, "statistics source": "recomputed"}, "",
    ),
    "another order at every run": (
        BWD, em.layernorm_bwd(columns=em.shuffled),
        {**GRADIENT, "deterministic": "no", "dbias order": SILENT, "dweight order": SILENT}, "deterministic=True",
    ),
    "compensated sums, which are no tree": (
        BWD, em.layernorm_bwd(columns=em.kahan), {**GRADIENT, "dbias order": SILENT, "long dbias sum": SILENT}, "",
    ),
}  # fmt: skip

TWO_STAGES = "runs of 8 (folded in halves), then folded in halves"
REAL = {
    "layernorm_fwd": {**LN_PLAIN, "long row sum": "in parts", "xhat/bfloat16": "not rounded"},
    "layernorm_bwd": {**GRADIENT, "row order": "pairwise", "long dbias sum": "in parts"},
    "rmsnorm_fwd": {**PLAIN, "row order": "folded in halves", "xhat/bfloat16": "not rounded"},
    "groupnorm_fwd": {**LN_PLAIN, "row order": "runs of 16 (folded in halves), then folded in halves"},  # by channel
    "add_rmsnorm_bwd": {k: v for k, v in GRADIENT.items() if not k.startswith("dbias")},
    "layernorm_fwd_torch": {**PLAIN, "form": "centred"},
    "layernorm_bwd_torch": {
        **GRADIENT, "statistics source": "recomputed", "row order": LANES, "used statistics/bfloat16": BF16,
    },
    "rmsnorm_fwd_torch": {**PLAIN, "statistics": SILENT, "xhat/bfloat16": "not rounded"},
    "rmsnorm_bwd_torch": {**{k: v for k, v in GRADIENT.items() if "dbias" not in k}, "statistics source": "recomputed"},
    "groupnorm_fwd_torch": {**PLAIN, "form": "expanded"},
    "groupnorm_bwd_torch": {
        **{k: v for k, v in GRADIENT.items() if k != "batch invariant"},  # vectors and remainders differ in dx
        "statistics source": "recomputed", "used statistics/bfloat16": BF16,
    },
}  # fmt: skip
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
def told(name):
    return fingerprint(load(name))


def say(found, expected):
    """What is said where something else was expected."""
    wrong = {}
    for key, want in expected.items():
        name, _, dtype = key.partition("/")
        assert name in NAMES
        got = found.said(name, dtype or "float32")
        if got != want:
            wrong[key] = got
    return wrong


def promises(found, contract=None):
    return {
        line.split(", and the ")[0].removeprefix("the contract says ")
        for line in disagreements(contract or Contract(), found)
    }


@pytest.mark.parametrize("what", EMULATED)
def test_an_emulated_kernel_is_told_and_what_it_breaks(what):
    op, function, expected, broken = EMULATED[what]
    kernel = em.kernel(op, function)
    started = time.perf_counter()
    found = fingerprint(kernel)
    assert say(found, expected) == {}
    told = promises(found)
    assert {p for line in told for p in line.split(", ")} == set(broken.split()), told
    assert time.perf_counter() - started < 30
    for statement in found.statements:
        assert statement.evidence
        assert (statement.said == probing.UNDECIDED) == (statement.confidence == 0)


@pytest.mark.parametrize("name", REAL)
def test_a_real_kernel_is_told(name):
    found = told(name)
    assert say(found, REAL[name]) == {}
    float32 = replace(found, statements=tuple(s for s in found.statements if s.dtype == "float32"))
    said = disagreements(load(name).contract, float32)  # in half precision torch keeps less than in float32
    # torch sums the rows one by one, shared among its threads: with one thread that is no blocked sum
    assert [line for line in said if not (name.endswith("_torch") and "sequential" in line)] == []


@pytest.mark.parametrize("name", ZOO_SAYS)
def test_a_kernel_of_the_zoo_is_told(name):
    specimen = ZOO[name]
    found = fingerprint(ready(specimen.kernel))
    assert say(found, ZOO_SAYS[name]) == {}
    if not specimen.wrong:
        assert disagreements(specimen.kernel.contract, found) == ()


def test_our_two_stages_of_dbias_are_the_tree_that_they_are():
    found = told("layernorm_bwd").of("dbias order")
    assert found.said == TWO_STAGES
    assert found.confidence > 0.95
    assert "2016 of 2016 sums" in found.evidence
    assert sorted(order.leaves_of(found.tree)) == list(range(64))


def fails(x, weight, bias, eps):
    raise RuntimeError("no")


def ones(x, weight, bias, eps):
    return torch.ones_like(x)


def nans(x, weight, bias, eps):
    return torch.full_like(x, torch.nan), x[:, 0] * torch.nan, x[:, 0] * torch.nan


def noisy(x, weight, bias, eps):
    return torch.randn_like(x), torch.randn(len(x)), torch.rand(len(x))


@pytest.mark.parametrize("function", [fails, ones, nans, noisy])
def test_what_is_no_norm_is_said_nothing_false_of(function):
    found = fingerprint(em.kernel(LN, function))
    said = {s.name: s.said for s in found.statements if s.said != probing.UNDECIDED}
    deterministic, invariant = ("no", "no") if function is noisy else ("yes", "yes")
    allowed = {"deterministic": deterministic, "batch invariant": invariant}
    if function is noisy:
        allowed["statistics"] = "float32"  # which is true of what it returns
    assert said.items() <= allowed.items()


def test_a_kernel_of_one_type_and_few_outputs():
    def picky(x, weight, eps):
        assert x.dtype == torch.float16
        return em.forward(x, weight, None, eps, False, returns=1)[0]

    kernel = replace(em.kernel(RMS, picky), dtypes=("float16",))
    found = fingerprint(kernel)
    assert {s.name for s in found.statements if s.said != probing.UNDECIDED} == {"xhat"}
    assert found.said("xhat", "float16") == "not rounded"


def test_a_negative_eps_that_is_refused_leaves_squares_unsaid():
    def proper(x, weight, eps):
        assert eps >= 0
        return em.forward(x, weight, None, eps, False)

    found = fingerprint(em.kernel(RMS, proper))
    assert found.said("row accumulator") is None
    assert found.said("eps place") == "inside"


def test_batchnorm_has_none():
    assert fingerprint(load("batchnorm_fwd")).statements == ()


@pytest.mark.parametrize("how", ["by count", "by place"])
def test_rows_that_depend_on_others(how):
    def run(x, weight, bias, eps):
        y, mean, rstd = em.forward(x, weight, bias, eps, True)
        if how == "by count" and len(x) < 10:
            rstd = torch.nextafter(rstd, rstd * 2)
        elif how == "by place":
            rstd[0] = torch.nextafter(rstd[0], rstd[0] * 2)
        return y, mean, rstd

    found = fingerprint(em.kernel(LN, run))
    assert found.said("batch invariant") == "no"
    assert promises(found) == set()
    assert promises(found, Contract(batch_invariant=True)) == {"batch_invariant=True"}


def test_a_wide_tree_of_many_at_once():
    tree = ((0, 1, 2, 3), (4, 5, 6, 7))
    first, second = order.pairs(8)
    sizes = np.array([4 if i // 4 == j // 4 else 8 for i, j in zip(first, second, strict=True)])
    assert order.tree_of(8, sizes) == tree
    assert order.described(tree) == "runs of 4 (4 at once), then both added"


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_is_found_from_its_sizes_and_from_its_sums(seed):
    rng = np.random.default_rng(seed)
    parts: list = list(range(20))
    while len(parts) > 1:
        i, j = sorted(rng.choice(len(parts), 2, replace=False))
        parts[i] = tuple(sorted((parts[i], parts.pop(j)), key=lambda t: min(order.leaves_of(t))))
    first, second = order.pairs(20)
    rows = order.masked(20, first, second, mask=2.0**40, unit=1.0)
    sums = order.total(parts[0], rows, em.rounding("float32"))
    assert order.tree_of(20, order.counts(sums, 20)) == parts[0]


@pytest.mark.parametrize("kept", [[0.5, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0], [2, 0, 0], [-1, 0, 0]])
def test_what_is_no_number_of_units_gives_no_sizes(kept):
    assert order.counts(np.array(kept, dtype=float), 3) is None


def test_disagreements_need_a_sure_statement_and_a_stronger_promise():
    def against(contract, *said):
        return disagreements(contract, Fingerprint("k", LN, "cpu", tuple(Statement(*s) for s in said)))

    assert against(Contract(), ("row accumulator", BF16, "e", 0.7)) == ()
    assert against(Contract(), ("row accumulator", "float64", "e", 0.9)) == ()
    assert against(Contract(), ("variance", probing.UNDECIDED, "e", 0.9)) == ()
    assert against(Contract(variance="shifted"), ("variance", "welford", "e", 0.9)) == ()
    assert against(Contract(variance="two_pass"), ("variance", "welford", "e", 0.9)) != ()
    assert against(Contract(xhat="x", partials="x", stats="x", expanded=True, summation="sequential"),
                   ("xhat", "rounded", "e", 0.9, BF16), ("dbias partials", BF16, "e", 0.9, BF16),
                   ("statistics", BF16, "e", 0.9, BF16), ("form", "expanded", "e", 0.9),
                   ("long row sum", "sequential", "e", 0.9)) == ()  # fmt: skip
    assert len(against(Contract(partials="x"), ("dbias partials", BF16, "e", 0.9))) == 1  # for a float32 x


def test_a_fingerprint_goes_to_json_and_back():
    found = fingerprint(em.kernel(LN, em.layernorm_fwd(total=em.sequential)))
    adapter = TypeAdapter(Fingerprint)
    text = adapter.dump_json(found)
    assert adapter.validate_json(text) == found
    assert json.loads(text)["statements"][0]["name"] in NAMES


def test_every_name_is_explained():
    seen = {s.name for name in (LN, BWD) for s in told(f"{name}_torch").statements}
    assert seen <= set(NAMES)


@pytest.mark.parametrize("module", [probing, compare, order, precision, statements])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0


def test_a_kernel_that_is_not_asked_for_float32():
    kernel: Kernel = replace(load("rmsnorm_fwd"), dtypes=(BF16,))
    found = fingerprint(kernel)
    assert found.said("row accumulator", BF16) == "float32"
    assert all(s.dtype == BF16 for s in found.statements if s.said != probing.UNDECIDED)
