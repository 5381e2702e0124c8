"""The weaker contract that explains findings: named for right kernels that promise less, never an excuse for a bug."""

from dataclasses import replace
from math import inf, prod
from pathlib import Path

import matrix
import pytest
import torch
from norms import layernorm, layernorm_bwd, rmsnorm, rmsnorm_bwd

from verify_norm.checks import CHECKS
from verify_norm.core.contract import Contract
from verify_norm.core.diagnosis import sentence
from verify_norm.core.finding import Finding
from verify_norm.core.kernel import Kernel
from verify_norm.core.known import WEAKER, Known, read
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.zoo import ZOO
from verify_norm.loading.registry import load_directions, ready
from verify_norm.search import diagnosing
from verify_norm.search.diagnosing import FLEETING, LATE, Trial
from verify_norm.search.examine import examine
from verify_norm.search.examined import Examined
from verify_norm.search.weaker import FREE, both

STYLE = Path(__file__).parents[1] / "support" / "strangers" / "contracts_style.py"
SHAPES = ((2,), (3, 40), (17, 8), (4, 300))
SPECS = [CaseSpec(shape, dtype) for dtype in ("float32", "float16", "bfloat16") for shape in SHAPES]
FAR = [CaseSpec(shape, offset=1000.0) for shape in SHAPES]
OFFSET = [CaseSpec((3, 40), dtype, weight_offset=1.0) for dtype in ("float16", "bfloat16")]
MANY_OFFSET = [replace(spec, shape=(40, 300)) for spec in OFFSET]  # of few elements none has both roundings at worst
HUGE = [CaseSpec((40, 6), "float16", dy_log2_scale=14)]
FARTHER = [replace(spec, offset=1e4) for spec in FAR]
BESIDE = {"calls", "effects", "honesty", "modes"}  # no finding here is theirs, and they call a kernel many times
VLLM = "residual=rounded,xhat=x,inplace=y:x+residual_out:residual"


@pytest.fixture(autouse=True)
def few_fresh_cases(monkeypatch):
    monkeypatch.setattr(diagnosing, "FRESH", 3)


def style(name, op, **fields):
    return replace(load_directions(f"{STYLE}:{name}", op)[0], **fields)


def diagnosed(kernel, specs=SPECS, deadline=inf, judging=lambda examined: examined):
    """Return the diagnoses of a kernel by output, from its findings in these cases."""
    checks = tuple(
        check.name for check in CHECKS.values() if check.applies(OPS[kernel.op]) and check.name not in BESIDE
    )

    def judge(spec, names, contract):
        return judging(examine(kernel, spec, names, "cpu", contract=contract))

    failing, first = {}, {}
    for spec in specs:
        for finding in examine(kernel, spec, checks, "cpu").findings:
            failing.setdefault((finding.check, finding.output), []).append(spec)
            first.setdefault((finding.check, finding.output), finding)
    assert failing, "nothing was found"
    trial = Trial(kernel, checks, failing, {}, judge, seed=0, deadline=deadline)
    return {one.output: one for one in trial.diagnoses(list(first.values()))}


def of(function, op, **fields):
    return Kernel("k", op, run=function, **fields)


def wide_output(x, weight, eps, normalized_shape, weight_offset=0.0):
    return rmsnorm()(x.float(), None if weight is None else weight.float(), eps, normalized_shape, weight_offset)


def statistics_in_the_type_of_x(dy, x, weight, bias, mean, rstd, eps, weight_offset, normalized_shape):
    mean, rstd = (t.to(x.dtype).float() for t in (mean, rstd))
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape, weight_offset)


def over_dy(dy, x, weight, rstd, eps, normalized_shape, weight_offset=0.0):
    dx, dweight = rmsnorm_bwd()(dy, x, weight, rstd, eps, normalized_shape, weight_offset)
    return dy.copy_(dx), dweight


def offset_weight(how="", kind=None):
    """RMSNorm that rounds weight + weight_offset, to the weight's own type unless `kind` is another."""

    def rmsnorm_fwd(x, weight, eps, normalized_shape, weight_offset):
        added = None if weight is None else (weight + weight_offset).to(kind or weight.dtype)
        return rmsnorm(how)(x, added, eps, normalized_shape)

    return rmsnorm_fwd


def gradients(kind=None, factor=1.0, largest=torch.inf):
    """LayerNorm's gradients: those of the parameters times a factor, in `kind` if it is given; float16 in ±largest."""

    def run(dy, x, weight, bias, mean, rstd, eps, weight_offset, normalized_shape):
        given = (t if t is None else t.float() for t in (dy, x, weight, bias, mean, rstd))
        dx, *others = layernorm_bwd()(*given, eps, normalized_shape, weight_offset)
        pairs = zip(others, (weight, bias), strict=True)
        found = (dx, x.dtype), *((None, None) if t is None else (t * factor, kind or p.dtype) for t, p in pairs)
        return [t if k is None else (t.clamp(-largest, largest) if k == torch.float16 else t).to(k) for t, k in found]

    return run


CONTIGUOUS = {"unsupported": lambda spec: "dy shares memory" if spec.dy_layout in ("expanded", "scalar") else None}


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "specs", "explained"),
    [
        (of(rmsnorm("llama"), "rmsnorm_fwd"), SPECS, {"y": "xhat=x"}),
        (of(wide_output, "rmsnorm_fwd"), SPECS[8:], {"y": "output=float32"}),
        (style("rounded_sum_fwd", "add_rmsnorm_fwd"), SPECS[8:], {"y": "residual=rounded"}),
        (of(over_dy, "rmsnorm_bwd", **CONTIGUOUS), SPECS[8:], {None: "inplace=dx:dy", "dx": "inplace=dx:dy"}),
        (of(layernorm_bwd("atomic"), "layernorm_bwd"), [CaseSpec((257, 8))], dict.fromkeys(
            ("dweight", "dbias"), "deterministic=false")),
        (of(statistics_in_the_type_of_x, "layernorm_bwd"), SPECS[8:], dict.fromkeys(("dx", "dweight"), "stats=x")),
        *((of(matrix.layernorm_bwd(how), "layernorm_bwd"), SPECS[1:2], dict.fromkeys(
            ("dx", "dweight", "dbias"), f"products={how}")) for how in ("tf32", "bf16x3", "bf16")),
        (of(matrix.layernorm_bwd("tf32x3"), "layernorm_bwd"), SPECS[1:3], {"dbias": "products=tf32x3"}),
        (of(offset_weight(), "rmsnorm_fwd"), OFFSET, {"y": "offset_weight=weight"}),
        (of(offset_weight(kind=torch.bfloat16), "rmsnorm_fwd"), OFFSET, {"y": "products=bf16"}),
        (of(offset_weight("llama"), "rmsnorm_fwd"), MANY_OFFSET, {"y": "xhat=x,offset_weight=weight"}),
        (of(gradients(torch.float32), "layernorm_bwd"), SPECS[9:], dict.fromkeys(
            ("dweight", "dbias"), "weight_grad=float32")),
        (of(gradients(torch.bfloat16), "layernorm_bwd"), [CaseSpec((3, 40), "bfloat16", "float32")], dict.fromkeys(
            ("dweight", "dbias"), "weight_grad=bfloat16")),
        (of(gradients(largest=65504.0), "layernorm_bwd"), HUGE, dict.fromkeys(
            ("dx", "dweight", "dbias"), "saturate=saturate")),
    ],
)  # fmt: skip
def test_a_right_kernel_that_promises_less_is_told_its_contract(kernel, specs, explained):
    found = diagnosed(kernel, specs)
    assert {output: one.contract for output, one in found.items()} == explained
    for one in found.values():
        assert one.failing
        assert one.fresh
        assert one.allows.loses == (one.contract == "weight_grad=bfloat16" or not read(one.contract).keys() <= FREE)
        assert ("It loses precision" in sentence(one)) == one.allows.loses


def test_what_is_written_in_place_and_returned_as_nothing_is_a_contract_too():
    found = diagnosed(style("fused_add_rms_norm", "add_rmsnorm_fwd"), SPECS[8:10])
    assert {one.contract for one in found.values()} == {VLLM}
    (said,) = {sentence(one).partition(": --contract ")[2].partition(" ")[0] for one in found.values()}
    assert said == "vllm"


@pytest.mark.slow
def test_a_contract_adds_to_what_the_kernel_declares():
    promised = Contract(inplace=("y:x",))
    found = diagnosed(style("fused_add_rms_norm", "add_rmsnorm_fwd", contract=promised), SPECS[8:10])
    assert "inplace=y:x+residual_out:residual" in {one.contract for one in found.values()}.pop()


def llama_with_another_eps(x, weight, eps, normalized_shape, weight_offset=0.0):
    return rmsnorm("llama")(x, weight, 2 * eps + 1e-3, normalized_shape, weight_offset)


def one_pass(dy, x, weight, bias, eps, weight_offset, normalized_shape):
    """LayerNorm's gradients by E[x²] − μ², which rows of two elements lose at small means too."""
    rows = x.float().reshape(-1, prod(normalized_shape))
    mean = rows.mean(-1)
    rstd = (rows.square().mean(-1) - mean.square()).clamp_min(0).add(eps).rsqrt()
    return layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape, weight_offset)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "specs"),
    [
        (of(llama_with_another_eps, "rmsnorm_fwd"), SPECS[8:]),
        (of(layernorm("n - 1"), "layernorm_fwd"), SPECS[8:]),
        (of(layernorm("one pass"), "layernorm_fwd"), FAR),
        (of(layernorm("one pass"), "layernorm_fwd"), FARTHER),
        (of(one_pass, "layernorm_bwd"), [CaseSpec((1, 2), offset=100.0)]),
        (of(layernorm_bwd("no c2"), "layernorm_bwd"), SPECS[:4]),
        (of(layernorm_bwd("a row of zeros"), "layernorm_bwd"), SPECS[8:]),
    ],
)
def test_no_contract_excuses_a_bug(monkeypatch, kernel, specs):
    monkeypatch.setattr(diagnosing, "FRESH", 6)  # in three a one-pass variance of two elements may look right
    found = diagnosed(kernel, specs).values()
    assert [one.contract for one in found] == [""] * len(found)
    assert all(sentence(one).startswith("no contract that verify-norm knows explains it") for one in found)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "specs", "wrong"),
    [
        (of(matrix.layernorm_bwd("tf32", drop=1), "layernorm_bwd"), SPECS[1:2], {"dweight"}),
        (of(matrix.layernorm_bwd("float16"), "layernorm_bwd"), [CaseSpec((40, 33), dy_log2_scale=-20), *SPECS[:2]], {
            "dx", "dweight", "dbias"}),
        (of(gradients(torch.float32, 1 + 2**-5), "layernorm_bwd"), SPECS[8:], {"dweight", "dbias"}),
        (of(gradients(largest=65472.0), "layernorm_bwd"), HUGE, {"dx", "dweight", "dbias"}),
    ],
)  # fmt: skip
def test_a_mistake_in_a_kernel_that_promises_less_is_not_excused(kernel, specs, wrong):
    found = diagnosed(kernel, specs)
    assert {output for output, one in found.items() if not one.contract} == wrong


HARMLESS = {"A31_dx_over_dy": "inplace=dx:dy"}  # its reason is this contract
LOSING = ("A20_stats_saved_bf16_fwd", "A21_dw_sum_bf16", "A23_residual_rounded_first")
FEW = [CaseSpec((9, 40), "bfloat16")]


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "specs"),
    [
        *((name, FEW) for name in (*HARMLESS, *LOSING, "A24_eps_outside_sqrt", "A32_db_after_overwrite")),
        ("A10_mem_efficient_gamma0", [CaseSpec((3, 40), weight_data="some_zero")]),
        ("A17_onepass_variance", FARTHER[:2]),
        ("A33_dx_none_ignored", [CaseSpec((2, 4, 3), num_groups=2, bias=False)]),
    ],
)
def test_no_known_bug_is_called_harmless(name, specs):
    for one in diagnosed(ready(ZOO[name].kernel), specs).values():
        assert bool(one.contract) == (name in HARMLESS or name in LOSING)
        assert one.contract == HARMLESS.get(name, one.contract)
        assert name in HARMLESS or not one.contract or one.allows.loses


def test_where_the_time_is_over_it_says_so():
    (late,) = diagnosed(of(rmsnorm("llama"), "rmsnorm_fwd"), SPECS[8:10], deadline=0.0).values()
    assert (late.contract, late.untold) == ("", LATE)
    assert "it is not known whether a weaker contract explains it: time ran out" in sentence(late)


def test_what_does_not_show_again_has_no_explanation():
    (fleeting,) = diagnosed(
        of(rmsnorm("llama"), "rmsnorm_fwd"), SPECS[8:10], judging=lambda examined: replace(examined, findings=())
    ).values()
    assert fleeting.untold == FLEETING


@pytest.mark.slow
def test_a_check_that_looks_no_more_explains_nothing():
    """Narrow types may keep `sums` from looking, so a relative error of a long sum is no rounding of x̂."""

    def wrong(dy, x, weight, bias, mean, rstd, eps, normalized_shape):
        dx, dweight, dbias = layernorm_bwd()(dy, x, weight, bias, mean, rstd, eps, normalized_shape)
        return dx, dweight * (1 + 3e-5), dbias

    (one,) = diagnosed(of(wrong, "layernorm_bwd"), [CaseSpec((4096, 4))]).values()
    assert one.output == "dweight"
    assert set(one.contract.split(",")) & {"xhat=x", "partials=x", "stats=x"} == set()


# What a kernel's answers let it conclude, without a kernel: `answers` has the findings of a case under a contract.

SMALL, OTHER, WORST, TALL = (CaseSpec(shape, "bfloat16") for shape in ((2, 8), (3, 8), (5, 8), (300, 4)))
WRONG = ("accuracy", "y")


def concluded(answers, spec=SMALL, check="accuracy", hung=False, **fields):
    """Return the diagnosis of y, and what was asked: each case with its checks."""
    asked = []

    def judge(spec, checks, contract):
        asked.append((spec, checks))
        said = answers(spec, contract)
        found = [Finding("k", name, output, "fail", "m", spec) for name, output in said if name in checks]
        return Examined(spec, findings=tuple(found), looked=checks, hung=hung)

    failing, checks = {(check, "y"): [spec, OTHER]}, ("accuracy", "memory", "signature")
    trial = Trial(of(print, "rmsnorm_fwd"), checks, failing, {"y": [WORST]}, judge, seed=0, deadline=inf)
    (one,) = trial.diagnoses([Finding("k", check, "y", "fail", "m", spec, **fields)])
    return one, asked


def unless(explains, *others):
    """y is wrong unless the contract explains it; then these others are."""
    return lambda spec, contract: others if explains(contract) else (WRONG,)


def rounds_xhat(contract):
    return contract.xhat is not None


def test_what_a_contract_has_to_explain():
    explained, asked = concluded(unless(rounds_xhat))
    assert read(explained.contract).keys() == {"xhat"}
    assert {SMALL, OTHER, WORST} <= {spec for spec, _ in asked}
    assert explained.fresh == diagnosing.FRESH
    for place in (OTHER, WORST):
        answers = lambda spec, contract, place=place: (WRONG,) if spec == place else unless(rounds_xhat)(spec, contract)  # noqa: E731
        assert not concluded(answers)[0].contract
    known = {SMALL, OTHER, WORST}
    anew = lambda spec, contract: unless(rounds_xhat)(spec, contract) if spec in known else (WRONG,)  # noqa: E731
    assert not concluded(anew)[0].contract, "a fresh case has it still"


def test_what_comes_to_light_under_a_contract_is_no_explanation():
    assert not concluded(unless(rounds_xhat, ("memory", "rstd")))[0].contract
    assert concluded(unless(rounds_xhat, ("distribution", "rstd")))[0].contract  # a check that does not run


def test_a_change_of_the_case_explains_nothing():
    """What a kernel may overwrite has memory of its own, so under inplace=y:x rows no longer share memory."""
    shared = replace(SMALL, dtype="float32", x_layout="expanded")
    of_the_layout = lambda spec, contract: (WRONG,) if spec.x_layout == "expanded" else ()  # noqa: E731
    assert not concluded(of_the_layout, shared)[0].contract
    in_few_runs = lambda spec, contract: () if contract.lanes == 8 else of_the_layout(spec, contract)  # noqa: E731
    assert concluded(in_few_runs, shared)[0].contract == "lanes=8"
    assert concluded(unless(lambda contract: contract.inplace == ("y:x",)), shared)[0].contract == "inplace=y:x"


def test_what_costs_least_is_named():
    free, _ = concluded(unless(lambda contract: contract != Contract()))
    assert read(free.contract).keys() <= FREE
    cheap, _ = concluded(unless(lambda contract: contract.products == "bf16" or contract.xhat == "x"))
    assert cheap.contract == "xhat=x"
    assert cheap.tried > 1


def test_what_nothing_explains_is_not_tried_one_by_one():
    hopeless, _ = concluded(lambda spec, contract: (WRONG,))
    assert (hopeless.contract, hopeless.tried) == ("", 0)


def test_a_crash_is_not_judged_again_and_a_hang_ends_the_diagnosis():
    crashed, asked = concluded(unless(rounds_xhat), check="crash")
    assert (crashed.contract, crashed.untold, asked) == ("", "", [])
    late, asked = concluded(unless(rounds_xhat), hung=True)
    assert (late.untold, len(asked)) == (LATE, 1)


def test_a_finding_is_looked_for_by_the_check_whose_run_showed_it():
    _, asked = concluded(unless(rounds_xhat), during="memory")
    assert asked[0] == (SMALL, ("memory",))


def test_a_case_of_many_rows_is_judged_by_the_checks_that_found_something():
    _, asked = concluded(unless(rounds_xhat), TALL)
    assert {checks for spec, checks in asked if spec == TALL} == {("accuracy",)}
    assert ("accuracy", "memory", "signature") in {checks for spec, checks in asked if spec == OTHER}


class SilentlyWrongDerivatives(torch.autograd.Function):
    """RMSNorm whose backward takes rstd as a constant: right gradients, with wrong derivatives of their own."""

    @staticmethod
    def forward(ctx, x, eps):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, rstd)
        return x * rstd

    @staticmethod
    def backward(ctx, dy):
        x, rstd = ctx.saved_tensors
        return rstd * (dy - x * rstd * (dy * x * rstd).mean(-1, keepdim=True)), None


@pytest.mark.nightly
@pytest.mark.slow
def test_a_way_that_a_contract_leaves_out_explains_nothing():
    """Under inplace=dx:dy there are no derivatives of gradients, but the check tries its other ways."""

    def rmsnorm(x, weight, eps):
        return SilentlyWrongDerivatives.apply(x, eps) * weight

    (backward,) = (one for one in load_directions(rmsnorm, "rmsnorm") if one.op == "rmsnorm_bwd")
    spec = CaseSpec((1,), "float32", further=("autograd",))
    (one,) = diagnosed(backward, [spec]).values()
    assert (one.output, one.contract, one.untold) == ("dx", "", "")


@pytest.mark.parametrize(("products", "asks"), [("tf32x3", False), ("tf32", True), (None, True)])
def test_only_fields_that_lose_much_have_to_show_in_typical_data(products, asks):
    """The judge finds nothing in typical cases, so that a field that must show there explains nothing."""
    asked = []

    def judge(spec, checks, contract):
        asked.append(contract)
        return Examined(spec, looked=checks)

    spec = CaseSpec((3, 40))
    kernel = of(print, "rmsnorm_fwd")
    trial = Trial(kernel, ("accuracy",), {("accuracy", "y"): [spec]}, {}, judge, seed=0, deadline=inf)
    group = diagnosing._Group(trial, "y", [Finding("k", "accuracy", "y", "fail", "m", spec)])
    fields = {"xhat": "x"} if products is None else {"products": products}
    assert group.shows_in_typical_data(fields) == (not asks)
    assert asked == [kernel.contract] * asks


def test_two_contracts_together_have_the_words_and_the_owners_of_both():
    one, other = Known("inplace=y:x", "it overwrites x", "vLLM"), Known("xhat=x", "x̂ is rounded", "Llama")
    fields = {"inplace": ("y:x",)}, {"xhat": "x"}
    known, changed = both((one, fields[0]), (other, fields[1]))
    assert known == Known("inplace=y:x,xhat=x", "it overwrites x; x̂ is rounded", "vLLM; Llama")
    assert changed == fields[0] | fields[1]
    unowned = replace(other, whose=""), fields[1]
    assert both((one, fields[0]), unowned)[0].whose == "vLLM", "one that nobody is known for"


def group(kernel, findings, failing=None, judge=None, checks=("accuracy",), output="y", **fields):
    """The findings of an output before a judge."""
    failing = failing or {(f.check, f.output): [f.spec] for f in findings}
    options = {"seed": 0, "deadline": inf} | fields
    trial = Trial(kernel, checks, failing, {}, judge or (lambda spec, *_: Examined(spec, looked=checks)), **options)
    return diagnosing._Group(trial, output, list(findings))


def finding(spec=SMALL, check="accuracy", output="y", **fields):
    return Finding("k", check, output, "fail", "m", spec, **fields)


FORWARD, BACKWARD = of(print, "rmsnorm_fwd"), of(print, "layernorm_bwd")


def test_the_time_is_over_after_the_deadline(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(diagnosing.time, "perf_counter", lambda: now[0])
    trial = group(FORWARD, [finding()], deadline=5.0).trial
    assert trial.under(Contract(), SMALL, ("accuracy",)).spec == SMALL
    now[0] = 5.001
    assert trial.under(Contract(), SMALL, ("accuracy",)).spec == SMALL, "what is known is known"
    with pytest.raises(diagnosing._LateError):
        trial.under(Contract(), OTHER, ("accuracy",))


def test_a_diagnosis_is_of_its_output_whatever_it_says():
    found = [
        concluded(unless(rounds_xhat)),
        concluded(unless(rounds_xhat), check="crash"),
        concluded(unless(rounds_xhat), hung=True),
        concluded(lambda spec, contract: ()),
        concluded(lambda spec, contract: (WRONG,)),
    ]
    assert [one.output for one, _ in found] == ["y"] * 5
    assert [bool(one.untold) for one, _ in found] == [False, False, True, True, False]


def test_what_explains_a_finding_has_its_words_and_counts():
    one, _ = concluded(unless(lambda contract: contract.output == "promoted"))
    known = next(known for known in WEAKER if known.fields == "output=promoted")
    assert (one.contract, one.words, one.whose) == (known.fields, known.words, known.whose)
    assert (one.failing, one.fresh, one.tried, one.allows.output) == (3, diagnosing.FRESH, 1, "y")


def test_where_nothing_explains_all_cases_it_counts_what_was_tried():
    clean = lambda spec, contract: (WRONG,) if spec != SMALL else unless(rounds_xhat)(spec, contract)  # noqa: E731
    one, _ = concluded(clean)
    assert (one.contract, one.untold) == ("", "")
    assert one.tried > 3


def test_what_explains_the_smallest_case_is_told_where_the_time_is_over():
    def judge(spec, checks, contract):
        found = [finding(spec)] if contract.xhat is None else []
        return Examined(spec, findings=tuple(found), looked=checks, hung=spec == OTHER)

    late = group(FORWARD, [finding()], {("accuracy", "y"): [SMALL, OTHER]}, judge).diagnosis()
    assert late.output == "y"
    assert late.untold.startswith(LATE)
    assert "xhat=" in late.untold


def test_what_explains_one_output_is_tried_first_on_the_next():
    def judge(spec, checks, contract):
        found = [finding(spec), finding(spec, output="rstd")] if contract.xhat is None else []
        return Examined(spec, findings=tuple(found), looked=checks)

    first = group(FORWARD, [finding()], {("accuracy", "y"): [SMALL], ("accuracy", "rstd"): [SMALL]}, judge)
    second = diagnosing._Group(first.trial, "rstd", [finding(output="rstd")])
    one, other = first.diagnosis(), second.diagnosis()
    assert (one.contract, one.tried > 1) == (other.contract, True)
    assert other.tried == 1


def test_a_contract_that_costs_precision_may_need_one_that_costs_none():
    """An output of another type, which is rounded before."""

    def judge(spec, checks, contract):
        found = [finding(spec)] if contract.xhat != "x" else []
        found += [finding(spec, "signature")] if contract.output != "promoted" else []
        return Examined(spec, findings=tuple(f for f in found if f.check in checks), looked=checks)

    both = [finding(), finding(check="signature")]
    one = group(FORWARD, both, judge=judge, checks=("accuracy", "signature")).diagnosis()
    assert read(one.contract) == {"xhat": "x", "output": "promoted"}
    parts = [next(k for k in WEAKER if k.fields == fields) for fields in ("output=promoted", "xhat=x")]
    assert one.words == "; ".join(known.words for known in parts)
    assert all(known.whose in one.whose for known in parts)


def test_two_costly_contracts_together_are_those_of_torch_on_a_cpu():
    """Its layer_norm computes x·a + b, and adds row after row in dweight: some cases show the one, some the other."""

    def judge(spec, checks, contract):
        kept = contract.expanded and contract.summation == "atomic"
        return Examined(spec, findings=() if kept else (wrong,), looked=checks)

    wrong = finding(replace(SMALL, dtype="float32"), output="dweight")
    one = group(BACKWARD, [wrong], judge=judge, output="dweight").diagnosis()
    assert (one.contract, one.whose) == ("expanded=true,summation=atomic", "layer_norm of torch's CPU")


def explained_where(kept, kernel, wrong):
    """Return the contract that is named where this condition of a contract keeps the finding away."""

    def judge(spec, checks, contract):
        return Examined(spec, findings=() if kept(contract) else (wrong,), looked=checks)

    return group(kernel, [wrong], judge=judge, output=wrong.output).diagnosis().contract


def test_where_16_bits_alone_fail_matrix_products_come_last():
    """LlamaRMSNorm has none, but these allow its dweight less than terms of the type of x do."""
    backward, wrong = of(print, "rmsnorm_bwd"), finding(output="dweight")
    in_half = lambda contract: contract.products == "bf16"  # noqa: E731
    llama = lambda contract: (contract.xhat, contract.partials) == ("x", "x")  # noqa: E731
    assert explained_where(lambda one: in_half(one) or llama(one), backward, wrong) == "xhat=x,partials=x"
    assert explained_where(in_half, backward, wrong) == "products=bf16"


def test_a_norm_of_torch_and_an_operation_in_turn_may_each_round():
    """The norm may compute x·a + b, as torch's group_norm on a CPU, and its result has the type of x."""
    kernel, wrong = of(print, "groupnorm_silu_fwd"), finding(CaseSpec((2, 4, 3), "bfloat16", num_groups=2))
    assert explained_where(lambda one: one.z == "x" and one.expanded, kernel, wrong) == "z=x,expanded=true"


ALLOWED = {  # of each output, by the types of x and weight: under the own contract, and under the weaker one
    ("float32", None): ({"dx": 1.0, "dweight": 2.0}, {"dx": 3.0, "dweight": 2.0}),
    ("bfloat16", None): ({"dx": 1.0, "dweight": 1.0}, {"dx": 2.0, "dweight": 8.0}),
    ("bfloat16", "float32"): ({"dx": 1.0, "dweight": 1.0}, {"dx": 1.0, "dweight": 16.0}),
}


@pytest.mark.parametrize(
    ("output", "fields", "expected"),
    [
        ("dx", {"xhat": "x"}, ("dx", "float32 dx", 1.0, 3.0)),
        ("dweight", {"xhat": "x"}, ("dweight", "bfloat16 dweight", 1.0, 8.0)),
        (None, {"xhat": "x"}, ("dweight", "bfloat16 dweight", 1.0, 8.0)),
        ("dweight", {"weight_grad": "float16"}, ("dweight", "bfloat16 float32 dweight", 1.0, 16.0)),
        (None, {"weight_grad": "float16"}, ("dweight", "bfloat16 float32 dweight", 1.0, 16.0)),
    ],
)
@pytest.mark.parametrize("step", [1, -1])
def test_what_a_contract_allows_is_told_of_the_type_and_output_that_gain_most(
    output, fields, expected, step, monkeypatch
):
    """The type of the weight counts where its gradient is what the contract is about."""

    def allowances(op, contract, *kinds):
        return ALLOWED[kinds][contract != BACKWARD.contract]

    def types(op, *kinds):
        return {name: " ".join(filter(None, (*kinds, name))) for name in ("dx", "dweight")}

    monkeypatch.setattr(diagnosing.allowance, "allowances", allowances)
    monkeypatch.setattr(diagnosing.allowance, "types", types)
    kinds = (("float32", None), ("bfloat16", "float32"), ("bfloat16", None))[::step]
    specs = [CaseSpec((2, 8), *kind) for kind in kinds]
    of_output = group(BACKWARD, [finding(specs[0], output=output)], {("accuracy", output): specs}, output=output)
    found = of_output.weaker.allowance(fields)
    assert (found.output, found.dtype, found.own, found.weaker) == expected
    assert found.case == diagnosing.allowance.words("layernorm_bwd")


@pytest.mark.parametrize(
    ("looked", "gone", "everywhere", "explains"),
    [
        (True, True, True, True),
        (False, True, True, False),
        (True, False, True, False),
        (True, True, False, False),
        (False, False, True, False),
    ],
)
def test_a_check_looks_again_and_finds_nothing_that_would_show_elsewhere(
    looked, gone, everywhere, explains, monkeypatch
):
    judged = group(FORWARD, [finding()])
    for name, answer in (("looks_again", looked), ("vanishes", gone), ("shows_in_typical_data", everywhere)):
        monkeypatch.setattr(judged, name, lambda *_, answer=answer: answer)
    assert judged.explains({"xhat": "x"}) == explains


MODES = (("modes", "one"), ("modes", "two"), ("calls", "three"))


@pytest.mark.parametrize(
    ("looked", "before", "after", "looks"),
    [
        (("modes",), MODES, MODES, True),
        ((), MODES, MODES, False),
        (("accuracy",), MODES, MODES, False),
        (("modes",), MODES, MODES[:2], True),  # the ways of another check
        (("modes",), MODES, MODES[1:], False),
        (("modes",), MODES[1:], MODES, True),
        ((), (), (), False),
    ],
)
@pytest.mark.parametrize("named", [{"check": "modes"}, {"during": "modes"}])
def test_a_check_looks_again_in_as_many_ways(looked, before, after, looks, named):
    def judge(spec, checks, contract):
        assert checks == ("modes",)
        return Examined(spec, looked=looked, ways=before if contract == Contract() else after)

    one = finding(**named)
    assert group(FORWARD, [one], judge=judge).looks_again(one, {"xhat": "x"}) == looks


HALF = CaseSpec((2, 8), "float16", special="nan", special_at="first")


@pytest.mark.parametrize(
    ("changes", "looks"),
    [
        ({"index": (0, 3)}, False),  # of a row with a NaN nothing is known
        ({"index": (1, 3)}, True),
        ({"index": None}, True),
        ({"index": (0, 3), "check": "nonfinite"}, True),  # which judges no element by its bound
        ({"index": (0,), "check": "statistics", "output": "rstd"}, False),
        ({"index": (1,), "check": "statistics", "output": "rstd"}, True),
        ({"index": (0, 3), "output": None}, True),
    ],
)
def test_a_check_that_judges_elements_looks_at_the_one_that_it_found(changes, looks):
    one = finding(HALF, **changes)
    judged = group(FORWARD, [one], judge=lambda spec, *_: Examined(spec, looked=(one.check,)), output=one.output)
    assert judged.looks_again(one, {"xhat": "x"}) == looks


def test_an_output_that_the_contract_leaves_without_a_truth_is_not_looked_at(monkeypatch):
    one, contracts = finding(index=(0, 3)), []
    monkeypatch.setattr(diagnosing.make, "truths", lambda *given: contracts.append(given) or {"y": None})
    assert group(FORWARD, [one]).looks_again(one, {"xhat": "x"}) is False
    assert contracts[0][2] == Contract(xhat="x")


@pytest.mark.parametrize(("shape", "checks"), [((100, 1), ("accuracy", "memory")), ((101, 1), ("accuracy",))])
def test_a_case_of_more_than_a_hundred_rows_is_judged_by_fewer_checks(shape, checks):
    asked, spec = [], CaseSpec(shape)

    def judge(spec, names, contract):
        asked.append((spec, names))
        return Examined(spec, looked=names)

    judged = group(FORWARD, [finding(spec)], judge=judge, checks=("accuracy", "memory"))
    assert judged.holds_in_other_cases({"xhat": "x"})
    assert asked[0] == (spec, checks)
