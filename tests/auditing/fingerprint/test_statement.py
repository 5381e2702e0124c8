"""A fingerprint as data, and which of its statements contradict a contract."""

import doctest
import json

import emulations as em
from pydantic import TypeAdapter

from verify_norm.auditing.fingerprint import statement
from verify_norm.auditing.fingerprint.probing import fingerprint
from verify_norm.auditing.fingerprint.statement import NAMES, UNDECIDED, Fingerprint, Statement, disagreements
from verify_norm.core.contract import Contract

BF16 = "bfloat16"


def against(contract, *statements):
    return disagreements(contract, Fingerprint("k", "layernorm_fwd", "cpu", tuple(Statement(*s) for s in statements)))


def test_only_a_sure_statement_that_is_worse_than_promised_contradicts():
    assert against(Contract(), ("row accumulator", BF16, "e", 0.7)) == ()
    assert against(Contract(), ("row accumulator", "float64", "e", 0.9)) == ()
    assert against(Contract(), ("variance", UNDECIDED, "e", 0.9)) == ()
    assert against(Contract(), ("row accumulator", UNDECIDED, "e", 0.9)) == ()
    assert against(Contract(variance="shifted"), ("variance", "welford", "e", 0.9)) == ()
    assert against(Contract(variance="two_pass"), ("variance", "welford", "e", 0.9)) != ()


def test_a_contract_that_permits_all_contradicts_nothing():
    permits = Contract(xhat="x", partials="x", stats="x", expanded=True, summation="sequential")
    seen = (
        ("xhat", "rounded", "e", 0.9, BF16),
        ("dbias partials", BF16, "e", 0.9, BF16),
        ("statistics", BF16, "e", 0.9, BF16),
        ("form", "expanded", "e", 0.9),
        ("long row sum", "sequential", "e", 0.9),
    )
    assert against(permits, *seen) == ()
    assert len(against(Contract(), *seen)) == len(seen)
    assert len(against(Contract(partials="x"), ("dbias partials", BF16, "e", 0.9))) == 1  # for a float32 x


def test_a_fingerprint_goes_to_json_and_back():
    found = fingerprint(em.kernel("layernorm_fwd", em.layernorm_fwd(total=em.sequential)))
    adapter = TypeAdapter(Fingerprint)
    text = adapter.dump_json(found)
    assert adapter.validate_json(text) == found
    assert json.loads(text)["statements"][0]["name"] in NAMES


def test_doctests():
    assert doctest.testmod(statement).failed == 0
