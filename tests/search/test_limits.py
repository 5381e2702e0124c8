"""Limits that a kernel states: the words and the cases have to agree."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import run

from verify_norm.cases import corners
from verify_norm.core import geometry, report_text
from verify_norm.core.errors import Exit
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import LAYOUTS, CaseSpec
from verify_norm.loading.registry import load_directions
from verify_norm.running.refusals import limits as kinds
from verify_norm.search import limits, traits
from verify_norm.search.limits import Raised, hints, separating, stated, wording
from verify_norm.search.search import replay, search

REFUSING = Path(__file__).parents[1] / "support" / "strangers" / "refusing.py"
OP = OPS["layernorm_fwd"]
TABLE = corners.corners(OP, ("float32", "float16", "bfloat16"))
CONTIGUOUS = next(trait.of for trait in traits.TRAITS if trait.about == "contiguous")  # x
NOTHING = Kernel("k", OP.name, run=lambda x, weight, bias, eps: x)


def told(error, refuses, kernel=NOTHING, say=stated):
    """What is said of a kernel that raises this in the cases of the corner table that it refuses."""
    said = f"{type(error).__name__}: {error}"
    raised = [Raised(spec, said, kinds(error, on_cpu=True)) for spec in TABLE if refuses(spec)]
    assert raised
    found = say(kernel, raised, [spec for spec in TABLE if not refuses(spec)])
    assert set(found) <= {wording(said)}
    return found.get(wording(said), "")


@pytest.mark.parametrize(
    ("error", "refuses", "limit"),
    [
        (ValueError("only 2-D x"), lambda s: len(s.shape) != 2, "x of 2 dimensions only"),
        (AssertionError("q must be (B, T, H, D)"), lambda s: len(s.shape) != 4, "x of 4 dimensions only"),
        (
            ValueError("too many values to unpack (expected 2)"),
            lambda s: len(s.shape) > 2,
            "x of 1 or 2 dimensions only",
        ),
        (
            AssertionError("assert len(normalized_shape.shape) == 1"),
            lambda s: s.normalized_ndim > 1,
            "1 normalized dim",
        ),
        (
            TypeError("dtype torch.float32 not supported"),
            lambda s: s.dtype == "float32",
            "x of bfloat16 or float16 only",
        ),
        (
            ValueError("expected weight of x's dtype"),
            lambda s: s.weight_dtype and s.weight,
            "a weight of x's type only",
        ),
        (
            TypeError("weight must be torch.float32 like x, not torch.bfloat16"),
            lambda s: s.dtype == "float32" and s.weight_dtype == "bfloat16" and s.weight,
            "a weight no narrower than x only",
        ),
        (ValueError("N must be divisible by 8"), lambda s: s.shape[-1] % 8, "that is a multiple of 8 only"),
        (ValueError("head_dim must be even"), lambda s: s.shape[-1] % 2, "that is a multiple of 2 only"),
        (ValueError("odd head_dim is unsupported"), lambda s: s.shape[-1] % 2, "that is a multiple of 2 only"),
        (ValueError("must be a power of 2"), lambda s: s.shape[-1].bit_count() != 1, "that is a power of 2 only"),
        (ValueError("rows longer than 700 are not supported"), lambda s: s.shape[-1] > 700, "at most 700 only"),
        (ValueError("N <= 700 is required, got 1024"), lambda s: s.shape[-1] > 700, "--only N<=700 declares it"),
        (ValueError("N must be less than 700"), lambda s: s.shape[-1] >= 700, "below "),
        (
            ValueError("layer norm doesn't support feature dim >= 8KB"),
            lambda s: s.shape[-1] * (4 if s.dtype == "float32" else 2) >= 2**13,
            "below ",
        ),
        (ValueError("empty x is not supported"), lambda s: 0 in s.shape, "above 0 only"),
        (RuntimeError("weight must not be None"), lambda s: not s.weight, "cases with a weight only"),
        (TypeError("'NoneType' is no pointer"), lambda s: not s.bias, "cases with a bias only"),
        (ValueError("needs weight and bias"), lambda s: not (s.weight and s.bias), "cases with weight and bias only"),
        (ValueError("eps must be positive"), lambda s: s.eps == 0, "eps above 0 only"),
        (TypeError("compiled for torch.bfloat16, x is another"), lambda s: s.dtype != "bfloat16", "x of bfloat16 only"),
        (NotImplementedError("reshape it first"), lambda s: len(s.shape) != 2, "x of 2 dimensions only"),
        (NotImplementedError(), lambda s: not s.weight, "cases with a weight only"),
        (
            ValueError("needs contiguous 2-D x"),
            lambda s: len(s.shape) != 2 or not CONTIGUOUS(s, OP),
            "x of 2 dimensions and contiguous x only",
        ),
        (
            AssertionError("assert weight is not None and weight.dtype == x.dtype"),
            lambda s: not s.weight or s.weight_dtype,
            "--only weight_dtype=x,weight declares it",
        ),
        (
            ValueError("hidden size must be a power of two and at least 16"),
            lambda s: s.shape[-1].bit_count() != 1 or s.shape[-1] < 16,
            "a row length that is a power of 2 and a row length above 8 only",
        ),
    ],
)  # a limit in words that the cases confirm
def test_what_is_said_and_holds_is_a_limit(error, refuses, limit):
    said = told(error, refuses)
    assert limit in said
    assert "--only " in said


def of_sizes(sizes, say="N={} is not one of the instantiated sizes", more=()):
    """Return what is said of a kernel that refuses all rows but those of these lengths."""
    table = [*TABLE, *(CaseSpec((rows, n)) for n in sizes for rows in range(1, 12)), *more]
    errors = {spec: ValueError(say.format(spec.shape[-1])) for spec in table if spec.shape[-1] not in sizes}
    raised = [Raised(s, f"ValueError: {error}", kinds(error, on_cpu=True)) for s, error in errors.items()]
    return "".join(stated(NOTHING, raised, [spec for spec in table if spec.shape[-1] in sizes]).values())


def test_the_few_sizes_that_a_kernel_takes():
    assert "a last dimension of 64 or 128 or 1024 only" in of_sizes((64, 128, 1024))
    assert "--only last=64+128+1024 declares it" in of_sizes((64, 128, 1024))
    assert of_sizes((64, 128, 1024), say="this size is not supported") == ""  # it does not say which
    assert of_sizes(range(60, 76)) != ""
    assert of_sizes(range(60, 77)) == ""  # too many to be a list in its code


def test_two_limits_need_the_words_of_both_and_enough_cases():
    def refuses(s):
        return len(s.shape) != 2 or not CONTIGUOUS(s, OP)

    assert told(ValueError("needs 2-D x"), refuses) == ""
    assert told(NotImplementedError("reshape it first"), refuses) == ""
    assert told(ValueError("needs contiguous 2-D x"), lambda s: refuses(s) or s.seed % 5 == 0) == ""
    error = ValueError("needs contiguous 2-D x")
    raised = [Raised(s, f"ValueError: {error}", kinds(error, on_cpu=True)) for s in TABLE if refuses(s)]
    ran = [CaseSpec((2, n)) for n in range(2, 10)]
    assert stated(NOTHING, raised, ran)
    assert stated(NOTHING, raised, ran[:7]) == {}


@pytest.mark.parametrize(
    ("fails", "only"),
    [
        (lambda s: len(s.shape) != 2, "ndim=2"),
        (lambda s: s.normalized_ndim > 1, "normalized_ndim=1"),
        (lambda s: not s.weight, "weight"),
        (lambda s: s.weight and s.weight_dtype, "weight_dtype=x"),
        (lambda s: s.shape[-1] % 8, "last%8=0"),
        (lambda s: s.shape[-1].bit_count() != 1, "N=2^k"),
        (lambda s: s.shape[-1] > 1000, "N<1016"),  # the shortest row that fails
        (lambda s: s.shape[-1] < 5, "N>3"),
        (lambda s: s.eps < 1e-9, "eps>1e-12"),
        (lambda s: len(s.shape) != 2 or not s.weight, "ndim=2,weight"),
        (lambda s: s.dtype != "float32" or (s.weight and s.weight_dtype), ""),  # nor is it one of float32 by its weight
        (lambda s: s.dtype == "float16", ""),  # what loses precision there is no kernel of other types alone
        (lambda s: s.shape[0] % 4, ""),  # nor one of so many rows
        (lambda s: s.seed % 3 == 0, ""),
        (lambda s: False, ""),
        (lambda s: True, ""),
    ],
)
def test_failures_of_one_class_suggest_what_the_kernel_takes(fails, only):
    assert separating(NOTHING, [spec for spec in TABLE if fails(spec)], TABLE) == only


def test_a_threshold_of_a_class_is_the_number_that_the_kernel_says():
    long = [spec for spec in TABLE if spec.shape[-1] > 1000]
    assert separating(NOTHING, long, TABLE, ["ValueError: N must be a multiple of 1 and <= 1000"]) == "N<=1000"
    assert separating(NOTHING, long, TABLE, ["ValueError: N must be below 1000"]) == "N<1016"
    assert separating(NOTHING, long, TABLE, ["ValueError: N must be <= 500"]) == "N<1016"


def test_a_class_of_which_some_cases_pass_and_the_rest_of_a_run_of_few_cases():
    bare, others = ([CaseSpec((4, n), weight=weight) for n in range(20, 28)] for weight in (False, True))
    assert separating(NOTHING, bare[2:], bare + others) == "weight"  # the first ones may be of zeros
    assert separating(NOTHING, bare[3:], bare + others) == ""
    assert separating(NOTHING, bare[:1], bare[:1] + others) == ""  # one failure is no class
    assert separating(NOTHING, bare, bare + others) == "weight"
    assert separating(NOTHING, bare, bare + others[:7]) == ""


def test_a_backward_that_takes_contiguous_gradients_alone():
    kernel = Kernel("k", "layernorm_bwd", run=NOTHING.run)
    table = [CaseSpec((4, n), dy_layout=layout) for n in range(8, 14) for layout in LAYOUTS[:6]]
    strided = [spec for spec in table if spec.dy_layout not in ("contiguous", "offset")]
    assert separating(kernel, strided, table) == "contiguous=dy"
    both = [CaseSpec((4, n), x_layout=one, dy_layout=one) for n in (8, 9) for one in ("contiguous", "transposed")]
    more = [CaseSpec((4, n), weight_layout=one) for n in range(2, 9) for one in ("contiguous", "every_other")]
    assert separating(kernel, both[1::2], both[::2] + more) in ("contiguous=x", "contiguous=dy")


def test_a_limit_of_rotations_alone():
    kernel = Kernel("k", "qk_norm_rope_fwd", run=lambda x: x)
    table = corners.corners(OPS[kernel.op], ("float32", "bfloat16"))
    said = "NotImplementedError: rotary embeddings of a part of a row are not supported"
    table += [CaseSpec((3, n), rotary="half") for n in (2, 3)]  # of which half is rotated as the whole row is
    refused = [spec for spec in table if spec.rotary != "full" and spec.shape[-1] > 3]
    raised = [Raised(spec, said, ("rotary",)) for spec in refused]
    ran = [spec for spec in table if spec not in refused]
    (limit,) = stated(kernel, raised, ran).values()
    assert "it takes a rotation of the full row only" in limit
    assert "--only rotary=full" in limit
    assert stated(kernel, raised[1:], [*ran, raised[0].spec]) == {}


def test_a_limit_of_fused_additions_alone():
    kernel = Kernel("k", "add_rmsnorm_fwd", run=lambda x: x)
    table = corners.corners(OPS[kernel.op], ("float32", "bfloat16", "float16"))
    error = TypeError("residual: expected the dtype of x, got torch.float32")
    refused = [spec for spec in table if spec.residual_dtype == "float32"]
    raised = [Raised(spec, f"TypeError: {error}", kinds(error, on_cpu=True)) for spec in refused]
    ran = [spec for spec in table if spec not in refused]
    (limit,) = stated(kernel, raised, ran).values()
    assert "it takes a residual of x's type only" in limit
    assert "--only residual_dtype=x" in limit
    assert stated(kernel, raised[1:], [*ran, raised[0].spec]) == {}


def test_a_limit_of_partial_norms_alone():
    kernel = Kernel("k", "partial_rmsnorm_fwd", run=lambda x: x)
    table = [CaseSpec((3, n), variance_size=k) for n in (1, 2, 9, 40, 64) for k in (None, 1, 7, 2**20)]
    sizes = {spec: geometry.variance_size(spec, OPS[kernel.op]) for spec in table}
    said = "ValueError: the size of the variance must be even, got {}"
    about = kinds(ValueError(said.format(7)), on_cpu=True)
    raised = [Raised(spec, said.format(size), about) for spec, size in sizes.items() if size % 2]
    (limit,) = stated(kernel, raised, [spec for spec, size in sizes.items() if not size % 2]).values()
    assert "it takes a variance_size that is a multiple of 2 only" in limit
    assert "--only variance_size%2=0" in limit


def test_a_limit_of_training_alone():
    """As torch's batch_norm says, which takes eps = 0 in evaluation."""
    op, error = OPS["batchnorm_fwd"], ValueError("batch_norm eps must be positive during training, but got 0.0")
    table = corners.corners(op, ("float32", "bfloat16"))
    said, kernel = f"ValueError: {error}", Kernel("k", op.name, run=lambda x, weight, bias, eps: x)
    refused = [spec for spec in table if spec.eps == 0 and spec.training]
    raised = [Raised(spec, said, kinds(error, on_cpu=True)) for spec in refused]
    ran = [spec for spec in table if spec not in refused]
    assert "eps above 0 only" in stated(kernel, raised, ran)[wording(said)]
    other = next(spec for spec in ran if spec.training)  # of another eps
    assert stated(kernel, [*raised, Raised(other, said, raised[0].kinds)], ran) == {}


@pytest.mark.parametrize(
    ("error", "refuses", "hinted"),
    [
        (ValueError("only 2-D x"), lambda s: len(s.shape) == 2 and s.shape[0] > 250, "below "),  # in the wrong cases
        (ValueError("only 2-D x"), lambda s: len(s.shape) == 3, "x of 1 or 2 or 4 or 5"),  # it takes others
        (ValueError("more than 1024 elements are not supported"), lambda s: s.shape[-1] > 512, "below "),
        (ValueError("N must be divisible by 8"), lambda s: s.shape[-1] % 16, "multiple of 16"),  # in more than it says
        (ValueError("N must be divisible by 8"), lambda s: len(s.shape) > 2, "x of 1 or 2 dimensions"),  # in others
        (IndexError("index 1024 is out of range"), lambda s: s.shape[-1] > 1024, "below 1,025"),
        (RuntimeError("CUDA error: an illegal memory access"), lambda s: s.dtype == "bfloat16", "float16 or float32"),
        (AssertionError("assert blocks <= 4"), lambda s: s.shape[-1] > 1024, "below 1,025"),
        (RuntimeError("needs a GPU"), lambda s: s.shape[-1] > 1024, "below 1,025"),  # others run on the CPU
        (KeyError("bfloat16"), lambda s: s.dtype == "bfloat16", "float16 or float32"),
        (RuntimeError("tensor a (3) must match the size of b"), lambda s: len(s.shape) > 2, "1 or 2 dimensions"),
    ],
)
def test_what_is_not_said_or_does_not_hold_is_a_failure_with_a_hint(error, refuses, hinted):
    assert told(error, refuses) == ""
    hint = told(error, refuses, say=hints)
    assert hint.startswith("the cases that run suggest that it takes ")
    assert hinted in hint


def test_one_case_alone_shows_a_rank_where_the_words_speak_of_one():
    (alone,) = (spec for spec in TABLE if len(spec.shape) == 1)
    error = IndexError("Dimension out of range (expected to be in range of [-1, 0], but got -2)")
    assert "x of 2 or more dimensions only: if so, --only ndim>=2" in told(error, lambda s: s == alone, say=hints)
    assert told(IndexError("index 7 is out of range"), lambda s: s == alone, say=hints) == ""


def test_a_kernel_that_offers_none_may_not_fail_on_it():
    error = AttributeError("'NoneType' object has no attribute 'view'")
    offers = Kernel("k", OP.name, run=lambda x, weight=None, bias=None, eps=1e-5: x)
    assert "cases with a weight only" in told(error, lambda s: not s.weight)
    assert told(error, lambda s: not s.weight, offers) == ""
    assert "cases with a weight only" in told(ValueError("weight must not be None"), lambda s: not s.weight, offers)


def test_where_no_case_runs_nothing_is_checked_and_a_case_alone_proves_no_limit():
    def bf8(x, weight, eps):
        raise TypeError("only float8 is supported")

    report = run(bf8, examples=0, checks=("signature",))
    assert report.verdict is Exit.NOTHING
    assert "only float8 is supported); --only says which cases it takes" in report_text.gap(report)
    assert (
        replay(Kernel("k", "rmsnorm_fwd", run=bf8), CaseSpec((3, 5)), Settings(checks=("signature",))).verdict
        is Exit.FINDINGS
    )


def searched(name):
    (kernel,) = load_directions(f"{REFUSING}:{name}")
    return search(kernel, Settings(("float32",), ("signature", "accuracy"), examples=0, isolate=False))


@pytest.mark.slow
def test_a_right_kernel_passes_within_its_limits():
    report = searched("rms_norm_vectorized_fwd")
    assert searched("rms_norm_of_matrices_fwd").ok
    assert report.ok
    assert report.within == ", within its limits"
    reasons = {skip.reason.partition(" (")[0]: skip.cases for skip in report.skipped if skip.limit}
    assert set(reasons) == {
        "it takes cases with a weight only",
        "it takes tensors with contiguous rows only",
        "it takes a row length that is a multiple of 8 only",
    }
    assert report.coverage.refused == sum(reasons.values())


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("rms_norm_of_matrices_but_wrong_fwd", "accuracy", "ULP"),
        ("rms_norm_fails_where_long_fwd", "signature", "suggest that it takes a row length below 1,025 only"),
        ("rms_norm_refuses_more_than_it_says_fwd", "signature", "a row length that is a multiple of 16 only"),
    ],
)
def test_a_wrong_kernel_fails_whatever_it_refuses(name, check, said):
    report = searched(name)
    (finding,) = report.findings
    assert finding.check == check
    assert said in finding.message
    if check == "accuracy":
        assert "x of 2 dimensions only" in next(skip.reason for skip in report.skipped if skip.limit)


@pytest.mark.parametrize(
    ("op", "only", "changes", "value"),
    [
        ("layernorm_fwd", "contiguous", {}, True),
        ("layernorm_fwd", "contiguous", {"x_layout": "offset"}, True),
        ("layernorm_fwd", "contiguous", {"shape": (2, 3, 4)}, True),
        ("layernorm_fwd", "contiguous", {"x_layout": "transposed"}, False),
        ("layernorm_fwd", "contiguous", {"weight_layout": "every_other"}, False),
        ("layernorm_fwd", "contiguous", {"weight_layout": "every_other", "weight": False}, True),  # it is None
        ("layernorm_fwd", "contiguous", {"x_layout": "transposed", "shape": (1, 6)}, True),  # one row, of any stride
        ("layernorm_fwd", "contiguous", {"x_layout": "transposed", "shape": (0, 6)}, True),  # without elements
        ("layernorm_bwd", "contiguous", {"mean_layout": "every_other"}, True),  # what was saved is not the caller's
        ("layernorm_bwd", "contiguous", {"dy_layout": "expanded"}, False),
        ("layernorm_fp8_fwd", "contiguous", {}, True),  # its scale is one number
        ("layernorm_bwd", "contiguous=x+residual_out", {"dy_layout": "transposed"}, True),
        ("layernorm_bwd", "contiguous=dy", {"dy_layout": "transposed"}, False),
        ("layernorm_bwd", "contiguous=weight+bias", {"bias_layout": "every_other"}, False),
        ("layernorm_fwd", "unit_stride", {"x_layout": "row_strided"}, True),
        ("layernorm_fwd", "unit_stride", {"x_layout": "every_other"}, False),
        ("layernorm_fwd", "unit_stride", {"x_layout": "every_other", "shape": (4, 1)}, True),
        ("layernorm_fwd", "unit_stride", {"x_layout": "every_other", "shape": (4, 2)}, False),
        ("layernorm_fwd", "unit_stride", {"weight_layout": "every_other"}, True),
        ("layernorm_fwd", "weight_dtype=x", {"weight_dtype": "float32"}, True),
        ("layernorm_fwd", "weight_dtype=x", {"dtype": "bfloat16", "weight_dtype": "float32"}, False),
        ("layernorm_fwd", "weight_dtype=x", {"weight_dtype": "bfloat16", "weight": False, "bias": False}, True),
        ("layernorm_fwd", "weight_dtype=x", {"weight_dtype": "bfloat16", "weight": False}, False),  # that of bias
        ("rmsnorm_fwd", "weight_dtype=x", {"weight_dtype": "bfloat16", "weight": False}, True),
        ("batchnorm_fwd", "weight_dtype", {"shape": (4, 3, 5), "dtype": "bfloat16", "weight_dtype": "float32"}
         | {"weight": False, "bias": False}, "float32"),  # that of running statistics
        ("batchnorm_fwd", "weight_dtype", {"shape": (4, 3, 5), "weight": False, "bias": False, "running": False}, None),
        ("layernorm_fwd", "weight_dtype=x+float32", {"dtype": "bfloat16", "weight_dtype": "float32"}, True),
        ("layernorm_fwd", "weight_dtype=x+float32", {"weight_dtype": "bfloat16"}, False),
        ("qk_norm_rope_fwd", "other_dtype=x", {"dtype": "bfloat16", "other_dtype": "float32"}, False),
        ("qk_norm_rope_fwd", "other_dtype=x", {"other_dtype": "float32"}, True),
        ("add_rmsnorm_fwd", "residual_dtype=x", {"dtype": "bfloat16", "residual_dtype": "float32"}, False),
        ("add_rmsnorm_fwd", "residual_dtype=x", {"residual_dtype": "float32"}, True),
        ("layernorm_fwd", "weight,bias", {"bias": False}, False),
        ("layernorm_fwd", "weight", {"bias": False}, True),
        ("layernorm_fwd", "bytes", {"dtype": "bfloat16"}, 12),
        ("layernorm_fwd", "N=2^k", {"shape": (4, 8)}, True),
        ("layernorm_fwd", "N=2^k", {"shape": (4, 12)}, False),
        ("layernorm_fwd", "N%4=0", {"shape": (4, 12)}, True),
        ("layernorm_fwd", "N%8=0", {"shape": (4, 12)}, False),
    ],
)  # fmt: skip
def test_the_traits_of_a_case(op, only, changes, value):
    spec = replace(CaseSpec((4, 6)), **changes)
    trait = next(trait for trait in (*traits.TRAITS, *traits.multiples("")) if trait.only == only)
    assert trait.of(spec, OPS[op]) == value


EVEN = ("it must be even", "ODD rows", "divisible by 2")


def test_the_divisors_that_are_tried():
    """Those that a message names, else the powers of two up to 1024."""
    of = {
        said: {t.only for t in traits.multiples(said) if t.about == "N"}
        for said in ("", "divisible by 1", "N % 12", *EVEN)
    }
    assert of[""] == of["divisible by 1"] == {"N=2^k", *(f"N%{2**k}=0" for k in range(1, 11))}
    assert of["N % 12"] == {"N=2^k", "N%12=0"}
    assert all(of[said] == {"N=2^k", "N%2=0"} for said in EVEN)
    assert {trait.form for trait in traits.multiples("")} == {"yes"}


def trait(only):
    return next(trait for trait in traits.TRAITS if trait.only == only)


@pytest.mark.parametrize(
    ("only", "raised", "ran", "named", "declared"),
    [
        ("weight", {False}, {True}, (), "weight"),
        ("weight", {True}, {False}, (), None),  # what it refuses is no limit that --only knows
        ("weight_dtype", {None, "float16"}, {"float32"}, (), None),
        ("weight_dtype", {"float16"}, {None}, (), None),
        ("dtype", {"float16"}, {"float16", "float32"}, (), None),
        ("dtype", {"float16"}, {"float32", "bfloat16", None}, (), "dtype=bfloat16+float32"),
        ("dtype", {"float16"}, {"float32"}, (4,), "dtype=float32"),  # a number is no type
        ("ndim", {3, 4}, {1, 2}, (), "ndim=1+2"),
        ("ndim", {3}, {2}, (100,), "ndim=2"),  # no rank
        ("ndim", {3}, {2}, (8,), None),
        ("ndim", {3}, {2}, (2,), "ndim=2"),
        ("ndim", {3}, {2}, (3,), "ndim=2"),
        ("ndim", {1}, {2, 3, 4, 7}, (), "ndim>=2"),
        ("ndim", {5, 6}, {1, 2, 4}, (), "ndim<=4"),
        ("ndim", {3}, {1, 2, 4}, (), "ndim=1+2+4"),
        ("modulation", {"sample"}, {"token", None}, (), "modulation=token"),
        ("N", {200}, {1, 100}, (), "N<200"),
        ("N", {100, 1}, {200}, (), "N>100"),
        ("N", {200}, {0}, (), None),
        ("N", {150}, {100, 200}, (), None),
        ("N", {200}, {100}, (8,), "N<200"),  # perhaps a rank
        ("N", {200}, {100}, (9,), None),
        *(("N", {200}, {100}, (n,), "N<200" if 99 <= n <= 201 else None) for n in (98, 99, 100, 150, 200, 201, 202)),
        ("eps", {1e-3}, {1e-5}, (12,), "eps<0.001"),  # no size
    ],
)
def test_what_separates_the_cases_that_raised_from_those_that_ran(only, raised, ran, named, declared):
    limit = trait(only).limit(raised, ran, named)
    assert (limit and limit[1]) == declared


@pytest.mark.parametrize(
    ("only", "failed", "passed", "suggested"),
    [
        ("ndim", [3, 3, 4], [1, 2, 2], (3, 1.0, "ndim=1+2", {3, 4})),
        ("ndim", [3], [1], (1, 1.0, "ndim=1", {3})),
        ("ndim", [3, 3, 3], [3, 1], (3, 0.75, "ndim=1", {3})),
        ("ndim", [3, 3], [3, 1], (0, 0.0, "", set())),
        ("ndim", [3, 3], [3, 3, 3], (0, 0.0, "", set())),
        ("ndim", [1, 1], [2, 3, 4, 7], (2, 1.0, "ndim>=2", {1})),
        ("ndim", [3, 3], [], (0, 0.0, "", set())),  # it takes nothing
        ("weight", [False, False], [True], (2, 1.0, "weight", {False})),
        ("weight", [True, True], [False], (0, 0.0, "", set())),
        ("weight_dtype", [None, "float16"], ["float32"], (0, 0.0, "", set())),
        ("modulation", ["sample", "sample"], ["token", None], (2, 1.0, "modulation=token", {"sample"})),
        ("N", [5, 5], [5], (2, 2 / 3, "N<5", {5})),
        ("N", [5, 7], [3, 3, 9], (2, 2 / 3, "N<5", {5, 7, 9})),
        ("N", [5, 7], [3, 9, 9], (2, 2 / 3, "N>7", {3, 5, 7})),
    ],
)
def test_the_suggestion_outside_of_which_most_cases_fail(only, failed, passed, suggested):
    assert trait(only).suggested(failed, passed) == suggested


def test_a_refusal_says_what_is_not_taken_where_no_case_runs_and_the_next_one_too():
    raised = [
        Raised(CaseSpec((2, 3)), "ValueError: something else"),
        Raised(CaseSpec((2, 3)), "ValueError: no CPU", ("device",)),
        Raised(CaseSpec((2, 3)), "ValueError: only fp8", ("dtype",)),
    ]
    found = stated(NOTHING, raised, [])
    assert found.keys() == {"ValueError: no CPU", "ValueError: only fp#"}
    assert "CPU tensors" in found["ValueError: no CPU"]
    assert "no CPU" in found["ValueError: no CPU"]
    assert "only fp8" in found["ValueError: only fp#"]
    assert stated(NOTHING, raised, [], alone=True).keys() == {"ValueError: no CPU"}


def test_a_kernel_that_needs_a_gpu_may_return_an_empty_x_early():
    raised = [Raised(CaseSpec((2, 3)), "AssertionError: x is on the CPU, needs CUDA", ("device",))]
    empty = [CaseSpec((0, n)) for n in range(1, 10)]
    assert "CPU tensors" in next(iter(stated(NOTHING, raised, empty).values()))
    assert "CPU tensors" not in str(stated(NOTHING, raised, [*empty, CaseSpec((1, 1))]))


@pytest.mark.parametrize(("fails", "runs", "hinted"), [(1, 8, False), (2, 8, True), (2, 7, False), (3, 9, True)])
def test_two_failures_beside_eight_cases_that_run_are_a_hint(fails, runs, hinted):
    raised = [Raised(CaseSpec((2, n), weight=False), "RuntimeError: no") for n in range(2, 2 + fails)]
    ran = [CaseSpec((2, n)) for n in range(2, 2 + runs)]
    assert bool(hints(NOTHING, raised, ran)) == hinted


RUN = [CaseSpec((2, n)) for n in range(8, 17)]
CLASSES = {  # each with what the cases of another do not have
    "ndim=2": [CaseSpec((2, 2, n)) for n in (8, 9, 10)],
    "weight": [CaseSpec((2, n), weight=False) for n in (8, 9, 10, 11)],
    "bias": [CaseSpec((2, n), bias=False) for n in (8, 9, 10, 11, 12)],
    "contiguous=x": [CaseSpec((2, n), x_layout="every_other") for n in (8, 9, 10, 11, 12, 13)],
}


@pytest.mark.parametrize("names", [["ndim=2"], ["ndim=2", "contiguous=x"], ["ndim=2", "weight", "contiguous=x"]])
def test_three_classes_at_most_are_told_apart(names):
    failed = [spec for name in names for spec in CLASSES[name]]
    assert {*separating(NOTHING, failed, RUN).split(",")} == {*names}
    assert separating(NOTHING, [spec for cases in CLASSES.values() for spec in cases], RUN) == ""


def test_channels_may_have_to_be_a_multiple():
    kernel = Kernel("k", "groupnorm_fwd", run=NOTHING.run)
    table = [CaseSpec((2, c, n), num_groups=c // 2) for c in (8, 16, 24, 6, 12, 10) for n in (3, 5, 7)]
    assert separating(kernel, [spec for spec in table if spec.shape[1] % 8], table) == "C%8=0"


@pytest.mark.parametrize(
    ("failed", "ran", "only"),
    [
        # Rather a multiple than a threshold of a size or of eps.
        ([CaseSpec((2, n)) for n in (19, 21, 23)], [CaseSpec((2, n)) for n in range(2, 19, 2)], "N%2=0"),
        ([CaseSpec((2, n), eps=1e-12) for n in (3, 5, 7, 13)], [CaseSpec((2, n)) for n in range(2, 20, 2)], "N%2=0"),
        # Rather any other property than a multiple.
        ([CaseSpec((2, n), weight=False) for n in (3, 5, 7)], [
            CaseSpec((2, 4), weight=False), *(CaseSpec((2, n)) for n in range(2, 20, 2))], "weight"),
        # The first of two that explain nearly as much.
        ([CaseSpec((2, n), weight=False, bias=False) for n in range(2, 27)], [
            CaseSpec((2, 4), weight=False), *(CaseSpec((2, n)) for n in range(2, 27))], "weight"),
    ],
)  # fmt: skip
def test_what_is_likelier_is_suggested_first(failed, ran, only):
    assert separating(NOTHING, failed, ran) == only


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("rows of 7, 12", {7, 12}),
        ("64KB or 2 kib or 3 Ki or 5k", {65536, 2048, 3072, 5120}),
        ("float32", set()),
        ("8 kernels", {8}),
    ],
)
def test_the_numbers_that_a_message_names(said, numbers):
    assert limits._numbers(said) == numbers


@pytest.mark.parametrize(
    ("run", "limited"),
    [
        (lambda x, weight, bias=None: x, True),  # None for the other
        (lambda x, weight=None, bias=1: x, False),
        (max, True),  # without a signature
        (None, True),
    ],
)
def test_none_is_a_limit_unless_the_signature_allows_it(run, limited):
    error = AttributeError("'NoneType' object has no attribute 'view'")
    assert bool(told(error, lambda s: not s.weight, Kernel("k", OP.name, run=run))) == limited


def annotated(x, weight: CaseSpec | None, bias): ...


def optional(x, weight: "Optional[CaseSpec]", bias): ...  # noqa: F821


def plain(x, weight: CaseSpec, bias): ...


@pytest.mark.parametrize(("run", "limited"), [(annotated, False), (optional, False), (plain, True)])
def test_an_annotation_may_allow_none(run, limited):
    error = AttributeError("'NoneType' object has no attribute 'view'")
    assert bool(told(error, lambda s: not s.weight, Kernel("k", OP.name, run=run))) == limited


def test_clauses_name_the_tensors_that_the_operator_has():
    def clauses(op):
        return {trait.only for trait in traits.traits_of(OPS[op], "")}

    assert {"contiguous=weight+bias", "contiguous=x", "contiguous=dy"} <= clauses("layernorm_bwd")
    assert {"contiguous=weight", "contiguous=residual_out"} <= clauses("add_rmsnorm_bwd")
    assert "bias" not in clauses("rmsnorm_fwd")
    assert "rotary" in clauses("qk_norm_rope_fwd") - clauses("rmsnorm_fwd")
