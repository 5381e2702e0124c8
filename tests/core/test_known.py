"""Contracts as text: names, fields, what is refused, and how they change what a kernel declares."""

import pytest

from verify_norm.core import known
from verify_norm.core.contract import Contract
from verify_norm.core.contract_fields import allowed
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS

FWD, BWD = OPS["rmsnorm_fwd"], OPS["rmsnorm_bwd"]


@pytest.mark.parametrize(
    ("text", "contract"),
    [
        ("", Contract()),
        ("llama", Contract(xhat="x", partials="x")),
        ("xhat=bf16, llama", Contract(xhat="bfloat16", partials="x")),  # a field wins, wherever it stands
        ("expanded=true,lanes=8,output=none", Contract(expanded=True, lanes=8)),
        ("strict,xhat=x", Contract(xhat="x")),
        ("apex,llama", Contract(lanes=64, xhat="x", partials="x")),
    ],
)
def test_a_text_is_a_contract(text, contract):
    assert known.declared(Contract(), text, FWD) == contract


def test_a_text_changes_what_the_kernel_declares_and_strict_sets_it_back():
    own = Contract(summation="sequential", xhat="x")
    assert known.declared(own, "xhat=none", FWD) == Contract(summation="sequential")
    assert known.declared(own, "strict", FWD) == Contract()
    assert known.declared(own, known.whole(Contract(lanes=8)), FWD) == Contract(lanes=8)


def test_an_operator_keeps_its_own_pairs():
    assert known.declared(Contract(), "inplace=y:x+dx:dy", FWD).inplace == ("y:x",)
    assert known.declared(Contract(), "inplace=y:x+dx:dy", BWD).inplace == ("dx:dy",)
    assert known.declared(Contract(), "vllm", OPS["add_rmsnorm_fwd"]).inplace == ("y:x", "residual_out:residual")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lama", "unknown contract 'lama' (did you mean llama?); verify-norm show contracts shows all "),
        ("xaht=x", "unknown field of a contract 'xaht' (did you mean xhat?); verify-norm show contracts shows all "),
        ("xhat=y", "xhat: expected none, float64, float32, float16, bfloat16 or x, got 'y'"),
        ("lanes=0", "lanes: expected a whole number of 1 or more, got '0'"),
        ("lanes=few", "lanes: expected a whole number"),
        ("expanded=1", "expanded: expected true or false, got '1'"),
        ("residual=", "residual: expected sum or rounded, got ''"),
        ("inplace=z:x", "as y:x+residual_out:residual, got 'z:x'"),
        ("inplace=x:y", "got 'x:y'"),
        ("inplace=y", "got 'y'"),
        ("xhat=x,llama,xhat=float16", "xhat stands twice in "),
        ("llama,llama", "llama stands twice in "),
        ("inplace=y:x,inplace=dx:dy", "inplace stands twice in 'inplace=y:x,inplace=dx:dy'; pairs are joined by +"),
        (",", "unknown contract ''"),
    ],
)
def test_a_wrong_text_is_one_line(text, said):
    with pytest.raises(UsageError) as caught:
        known.checked(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_known_contract_can_be_read_and_written():
    for one in (*known.NAMES.values(), *known.WEAKER):
        fields = known.read(one.fields)
        assert known.read(known.write(fields)) == fields
        assert one.words


def test_every_field_has_a_meaning_and_words_for_its_values():
    assert known.meanings().keys() == known.STRICT.keys()
    assert all(map(allowed, known.STRICT))


def test_what_a_contract_changes_of_another():
    (dx_over_dy,) = (one for one in known.WEAKER if one.fields == "inplace=dx:dy")
    assert dx_over_dy.of(Contract(), BWD) == {"inplace": ("dx:dy",)}
    assert dx_over_dy.of(Contract(inplace=("dx:x",)), BWD) == {"inplace": ("dx:x", "dx:dy")}
    assert dx_over_dy.of(Contract(), FWD) is None, "it has neither"
    wide, offset = (known.Known(fields, "", "") for fields in ("weight_grad=float32", "xhat=x,offset_weight=weight"))
    assert wide.of(Contract(), FWD) is None, "it has no dweight"
    assert offset.of(Contract(), OPS["layernorm_fwd"]) == {"xhat": "x", "offset_weight": "weight"}
    assert offset.of(Contract(), OPS["groupnorm_fwd"]) == {"xhat": "x"}, "nothing is added to its weight"
    assert known.NAMES["llama"].of(Contract(xhat="x"), BWD) == {"partials": "x"}


def test_what_a_text_and_a_contract_say_back():
    assert known.checked("xhat = bf16, lanes=8") == "xhat=bf16,lanes=8"
    assert known.write({"inplace": (), "lanes": 8}) == "inplace=none,lanes=8"
    assert known.read("inplace=none") == {"inplace": ()}
    assert known.overwritten(Contract(inplace=("dx:dy", "y:x"))) == [("dx", "dy"), ("y", "x")]
    assert known.meanings()["weight_grad"] == "type of dweight and dbias; None: that of weight."
    assert known.meanings()["batch_invariant"].startswith("the same bits for a row, whatever the other rows")
    offset = known.Known("offset_weight=weight", "", "")
    assert offset.of(Contract(), FWD) == {"offset_weight": "weight"}, "an attribute counts as an input does"
    fused = OPS["add_rmsnorm_bwd"]  # it has no x: the sum stands for it
    assert known.NAMES["llama"].of(Contract(), fused) == {"xhat": "x", "partials": "x"}


def test_what_a_kernel_without_matrix_products_may_not_declare():
    assert known.caution({"products": "tf32"}) == "; a kernel without matrix products is wrong"
    assert known.caution({"xhat": "x"}) == ""
