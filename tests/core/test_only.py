"""What a kernel takes, as text."""

from dataclasses import replace

import pytest

from verify_norm.core import only
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec

RMS, GROUPS, BATCH = OPS["rmsnorm_fwd"], OPS["groupnorm_fwd"], OPS["batchnorm_fwd"]
MODULATED, ROTATED = OPS["modulate_rmsnorm_fwd"], OPS["qk_norm_rope_fwd"]
ADDED, STREAM = OPS["add_rmsnorm_fwd"], CaseSpec((2, 3), "bfloat16", residual_dtype="float32")
ROWS, CHANNELS = CaseSpec((2, 3, 16)), CaseSpec((2, 8, 5), num_groups=4)
HELD = [  # clauses, operator, a case that meets them, one that does not
    ("ndim=2+3", RMS, ROWS, replace(ROWS, shape=(16,))),
    ("ndim<3", RMS, replace(ROWS, shape=(6, 16)), ROWS),
    ("N%8=0", RMS, ROWS, replace(ROWS, shape=(2, 3, 12))),
    ("N=2^k", RMS, ROWS, replace(ROWS, shape=(2, 3, 12))),
    ("N=2^k", RMS, replace(ROWS, shape=(2, 3, 1)), replace(ROWS, shape=(2, 3, 0))),
    ("N<=16,N>=16", RMS, ROWS, replace(ROWS, shape=(2, 3, 17))),
    ("N>15,N<17", RMS, ROWS, replace(ROWS, shape=(2, 3, 15))),
    ("N=16+32", RMS, ROWS, replace(ROWS, shape=(2, 3, 12))),
    ("M>=1", RMS, ROWS, replace(ROWS, shape=(0, 16))),
    ("M=6", RMS, ROWS, replace(ROWS, shape=(2, 16))),
    ("bytes%64=0", RMS, ROWS, replace(ROWS, dtype="bfloat16")),
    ("normalized_ndim=1", RMS, ROWS, replace(ROWS, normalized_ndim=2)),
    ("C%8=0", GROUPS, CHANNELS, replace(CHANNELS, shape=(2, 4, 5))),
    ("G<=4", GROUPS, CHANNELS, replace(CHANNELS, num_groups=8)),
    ("M=8,N=10", GROUPS, CHANNELS, replace(CHANNELS, num_groups=2)),
    ("eps=1e-5+1e-6", RMS, ROWS, replace(ROWS, eps=1e-3)),
    ("eps>0", RMS, ROWS, replace(ROWS, eps=0.0)),
    ("eps=0.000010000000000000000000000000", RMS, ROWS, replace(ROWS, eps=1e-6)),
    ("N=00000000000000000000000000000016", RMS, ROWS, replace(ROWS, shape=(2, 3, 1))),
    ("weight", RMS, ROWS, replace(ROWS, weight=False)),
    ("weight=false", RMS, replace(ROWS, weight=False), ROWS),
    ("weight=true", RMS, ROWS, replace(ROWS, weight=False)),
    ("weight=none", RMS, replace(ROWS, weight=False), ROWS),
    ("training", BATCH, CHANNELS, replace(CHANNELS, training=False)),
    ("modulation=token", MODULATED, replace(ROWS, modulation="token"), ROWS),
    ("rotary=half+quarter", ROTATED, replace(ROWS, rotary="half"), ROWS),
    ("dtype=bf16", RMS, replace(ROWS, dtype="bfloat16"), ROWS),
    ("weight_dtype=x", RMS, ROWS, replace(ROWS, weight_dtype="float16")),
    ("weight_dtype=fp32", RMS, ROWS, replace(ROWS, dtype="float16")),
    ("other_dtype=x", ROTATED, ROWS, replace(ROWS, dtype="bfloat16", other_dtype="float32")),
    ("residual_dtype=x", ADDED, ROWS, replace(ROWS, dtype="bfloat16", residual_dtype="float32")),
    ("residual_dtype=fp32", ADDED, STREAM, replace(STREAM, residual_dtype=None)),
    ("contiguous", RMS, ROWS, replace(ROWS, weight_layout="every_other")),
    ("contiguous=x", RMS, replace(ROWS, weight_layout="every_other"), replace(ROWS, x_layout="row_strided")),
    ("unit_stride", RMS, replace(ROWS, x_layout="row_strided"), replace(ROWS, x_layout="transposed")),
    ("aligned", RMS, ROWS, replace(ROWS, x_layout="offset")),
]
WRONG = [  # a text, the beginning of what is said of it
    ("N%8", "only: cannot read 'N%8'; expected N, "),
    ("N%8=1", "only: cannot read 'N%8=1'; expected N, "),
    ("N%0=0", "only: cannot read 'N%0=0'; expected N, "),
    ("N>=", "only: cannot read 'N>='; expected N, "),
    ("N<=1+2", "only: cannot read 'N<=1+2'; expected N, "),
    ("N=2.5", "only: cannot read 'N=2.5'; expected N, "),
    ("N>=2^k", "only: cannot read 'N>=2^k'; expected N, "),
    ("N=-8", "only: cannot read 'N=-8'; expected N, "),
    ("N=" + "9" * 4000, "only: cannot read 'N=999"),
    ("momentum=2", "only: momentum: expected a finite number from 0 to 1, got 2.0"),
    ("weight_offset=1+0.1", "only: weight_offset: expected a number of float32, such as 0.10000000149011612, got 0.1"),
    ("eps=nan", "only: cannot read 'eps=nan'; expected eps, "),
    ("weight=maybe", "only: cannot read 'weight=maybe'; expected weight, "),
    ("weight>1", "only: cannot read 'weight>1'; expected weight, "),
    ("eps.5", "only: cannot read 'eps.5'; expected eps, "),
    ("normalized_ndim=0", "only: cannot read 'normalized_ndim=0'; expected normalized_ndim, "),
    ("eps%2=0", "only: cannot read 'eps%2=0'; expected eps, "),
    ("modulation=", "only: cannot read 'modulation='; expected modulation, "),
    ("modulation>token", "only: cannot read 'modulation>token'; expected modulation, "),
    ("modulation=row", "only: cannot read 'modulation=row'; expected modulation, "),
    ("dtype=", "only: cannot read 'dtype='; expected dtype, "),
    ("dtype>bf16", "only: cannot read 'dtype>bf16'; expected dtype, "),
    ("dtype=x", "unknown dtype 'x'"),
    ("contiguous=", "only: cannot read 'contiguous='; expected contiguous, "),
    ("contiguous=z", "unknown tensor of contiguous 'z'"),
    ("dtype=int8", "unknown dtype 'int8'"),
    ("num_groups=2", "unknown clause of --only 'num_groups' (did you mean G?)"),
    ("hidden_size%8=0", "unknown clause of --only 'hidden_size' (did you mean N?)"),
    ("ndims=2", "unknown clause of --only 'ndims' (did you mean ndim?)"),
    (",", "only: expected clauses such as "),
    ("[red]x", "only: expected clauses such as "),
    ("N%8=0;rm -rf", "only: cannot read 'N%8=0;rm-rf'; expected N, "),
]


@pytest.mark.parametrize(("text", "op", "met", "missed"), HELD, ids=[row[0] for row in HELD])
def test_a_clause_tells_the_cases_apart(text, op, met, missed):
    assert only.refusal(text, met, op) is None
    assert only.refusal(text, missed, op).startswith("it takes ")
    assert only.read(",".join(map(str, only.read(text)))) == only.read(text), "the text of a clause is that clause"


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[row[0][:20] for row in WRONG])
def test_what_cannot_be_read_is_one_line(text, said):
    with pytest.raises(UsageError) as caught:
        only.checked(text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_the_operator_lacks_says_nothing_but_is_refused_where_no_direction_has_it():
    assert only.refusal("bias,C%32=0", ROWS, RMS) is None
    only.refuse_foreign("dresidual_out", [OPS["add_rmsnorm_fwd"], OPS["add_rmsnorm_bwd"]])
    with pytest.raises(UsageError, match=r"only: C%32=0: rmsnorm_fwd has no C; its clauses are ndim, "):
        only.refuse_foreign("C%32=0", [RMS])


def test_words_and_types():
    assert only.words("N%8=0,eps=1e-6") == "N % 8 = 0, eps = 1e-06"
    assert only.words("weight_offset=1,weight_offset=1.0") == "weight_offset = 1.0"
    assert only.words("contiguous=x+dy,weight=false,M>=1") == "contiguous x and dy, no weight, M >= 1"
    assert only.dtypes("dtype=bf16+fp16", ("float32", "bfloat16")) == ("bfloat16",)
    assert only.of_constants({"num_groups": 8, "eps": 1.1920928955078125e-07}) == "G=8,eps=1.1920928955078125e-07"


def test_a_text_is_kept_without_spaces_and_joined_without_what_stands_twice():
    assert only.checked(" N % 8 = 0, weight ") == "N%8=0,weight"
    assert only.joined("N%8=0,weight", "", "weight,eps=1e-6") == "N%8=0,weight,eps=1e-6"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ndim=2+3,N>=2", "2-D or 3-D input, N >= 2"),
        ("ndim=2,contiguous", "2-D contiguous input"),
        ("ndim<3", "ndim < 3"),
        ("contiguous", "contiguous input"),
        ("unit_stride=x", "unit-stride x"),
        ("running=false,training", "no running statistics, training"),
        ("dtype=bf16+fp16,eps=1e-6+1e-5", "bfloat16 or float16, eps = 1e-06 or 1e-05"),
        ("", ""),
    ],
)
def test_what_a_kernel_takes_in_words(text, words):
    assert only.words(text) == words


def test_a_constant_is_a_clause_where_a_case_has_its_name():
    fixed = {"eps": 1e-6, "bias": None, "training": True, "running": False, "weight": 0.0, "mode": "a", "num_groups": 4}
    assert only.of_constants(fixed) == "eps=1e-06,bias=false,training,running=false,weight,G=4"
    assert only.of_constants({"momentum": True, "scale": 1e16}) == "momentum=true,scale=1e16", "+ would join two values"
    with pytest.raises(UsageError) as caught:
        only.refuse_foreign("training", [RMS])
    assert str(caught.value) == (
        "only: training: rmsnorm_fwd has no training; its clauses are ndim, normalized_ndim, N, M, last, B, numel, "
        "bytes, eps, weight_offset, weight, dtype, weight_dtype, contiguous, unit_stride, aligned"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("2^k", "2^k"),
        ("-1", None),
        (str(2**53), None),
        (str(2**53 - 1), 2**53 - 1),
        ("1" * 40, None),
        ("0", 0),
    ],
)
def test_a_size_is_a_number_that_a_case_can_have(text, number):
    assert only._number(text, whole=True) == number
    assert only._number("0.5", whole=False) == 0.5
    assert only._number("2^k", whole=False) is None


def test_the_clauses_of_a_text():
    assert only.read("N%8=0") == (only.Clause("N", "%", (0,), 8),)
    assert only.read("N%1=0") == (only.Clause("N", "%", (0,), 1),)
    assert [str(clause) for clause in only.read("eps<1,rotary=full+half+quarter,weight=none")] == [
        "eps<1.0",
        "rotary=full+half+quarter",
        "weight=false",
    ]


EVERYWHERE = {"ndim", "N", "M", "last", "B", "numel", "bytes", "eps", "dtype", "weight_dtype"} | set(only.MEMORY)
ABOUT = {  # which of the other clauses say something of an operator
    "rmsnorm_fwd": "normalized_ndim weight weight_offset",
    "layernorm_bwd": "normalized_ndim weight bias weight_offset",
    "groupnorm_fwd": "C G weight bias",
    "instancenorm_bwd": "C weight bias",
    "batchnorm_fwd": "C weight bias running training momentum",
    "batchnorm_bwd": "C weight bias running training",
    "rmsnorm_fp8_fwd": "normalized_ndim weight weight_offset scale",
    "add_layernorm_bwd": "normalized_ndim weight bias weight_offset dresidual_out",
    "l2norm_fwd": "normalized_ndim",
    "partial_rmsnorm_fwd": "normalized_ndim weight weight_offset variance_size",
    "dropout_add_rmsnorm_fwd": "normalized_ndim weight weight_offset dropout_p residual_dtype",
    "modulate_layernorm_fwd": "normalized_ndim weight bias weight_offset modulation other_dtype",
    "qk_norm_rope_fwd": "normalized_ndim weight weight_offset rotary other_dtype",
}


@pytest.mark.parametrize("op", ABOUT)
def test_which_clauses_say_something_of_an_operator(op):
    assert {name for name in only.CLAUSES if only.applies(name, OPS[op])} == EVERYWHERE | set(ABOUT[op].split())
