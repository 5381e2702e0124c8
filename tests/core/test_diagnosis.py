"""A diagnosis in words: what explains a finding, what it costs, and the option that declares it."""

from verify_norm.core.diagnosis import LATE, Allowance, Diagnosis, option_of, sentence, two_digits

ROUNDED = Diagnosis(
    "y",
    "residual=rounded",
    "the rounded sum is normalized",
    "vLLM's fused_add_rms_norm",
    Allowance("a typical case", "y", "bfloat16", 0.5006, 0.7472),
    failing=9,
    fresh=12,
)


def test_the_words_have_the_contract_its_library_its_option_and_its_cost():
    assert sentence(ROUNDED) == (
        "explained by residual=rounded, the rounded sum is normalized (vLLM's fused_add_rms_norm): "
        "--contract residual=rounded declares it. It loses precision: it allows y 0.75 ULP of bfloat16, 0.5 without it "
        "(a typical case)"
    )
    free = Diagnosis("dx", "inplace=dx:dy", "dx overwrites dy", "", Allowance("a", "dx", "float32", 36.3, 36.3))
    assert sentence(free) == (
        "explained by inplace=dx:dy, dx overwrites dy: --contract inplace=dx:dy declares it. It allows no larger errors"
    )


def test_without_an_explanation_it_says_so():
    assert sentence(Diagnosis("y", tried=20)) == (
        "no contract that verify-norm knows explains it: under each of them a finding of y remains"
    )
    assert sentence(Diagnosis(None, tried=20)).endswith("a finding of the call remains")
    late = sentence(Diagnosis("y", untold=LATE))
    assert late.endswith("explains it: time ran out; a run with more --seconds may tell")
    assert sentence(Diagnosis("y", untold="it is gone")).endswith("explains it: it is gone")


def test_the_option_keeps_what_the_run_was_given_and_has_a_name_where_one_says_it():
    assert option_of(("partials=x", "xhat=x")) == "llama"
    assert option_of(("residual=rounded",), "llama") == "llama,residual=rounded"
    assert option_of(("lanes=8",), "lanes=32,expanded=true") == "expanded=true,lanes=8"
    assert option_of(("inplace=y:x", "inplace=residual_out:residual")) == "inplace=y:x+residual_out:residual"


def test_allowances_have_two_digits_and_thousands():
    assert [two_digits(value) for value in (0.5006, 99.4, 100.0, 101.6, 1206.2)] == ["0.5", "99", "100", "102", "1,206"]
    assert [Allowance("a", "y", "float32", 2.0, w).loses for w in (1.9, 2.0, 2.01, 2.1)] == [False, False, False, True]


def test_a_contract_of_matrix_products_is_for_kernels_that_have_them():
    products = Diagnosis("y", "products=tf32", "sums are products of matrices in TF32")
    assert "--contract products=tf32 declares it; a kernel without matrix products is wrong. " in sentence(products)
