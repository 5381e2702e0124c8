"""What two fingerprints and exact sums say of a difference."""

import doctest

from verify_norm.auditing.fingerprint.statement import CONTRACT_FIELDS, NAMES, Fingerprint, Statement, undecided
from verify_norm.core.contract import Contract
from verify_norm.core.kernel import Kernel
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.core.spec import CaseSpec
from verify_norm.equality import arithmetic
from verify_norm.equality.model import Difference, Element, Gap
from verify_norm.equality.walk import Walk
from verify_norm.running.isolate import InProcess


def test_doctests():
    assert doctest.testmod(arithmetic).failed == 0


def test_every_property_has_fields_of_the_contract_or_none():
    fields = {name for text in CONTRACT_FIELDS.values() for name in text.split(", ") if name}
    assert fields <= set(Contract.__dataclass_fields__)
    assert CONTRACT_FIELDS.keys() == NAMES.keys()


def printed(*statements):
    return Fingerprint("k", "layernorm_fwd", "cpu", statements)


def test_what_one_fingerprint_leaves_open_is_not_sure():
    order = Statement("row order", "pairwise", "seen", 0.9, tree=((0, 1), (2, 3)))
    (open_,) = arithmetic.contrasts(printed(order), printed(undecided("row order", "no tree")))
    assert (open_.field, open_.sure) == ("summation, lanes", False)
    assert not list(arithmetic.contrasts(printed(undecided("row order", "a")), printed(undecided("row order", "b"))))
    assert not list(arithmetic.contrasts(printed(order), printed()))


def test_orders_without_a_name_differ_by_their_trees():
    one, other = (
        Statement("row order", "irregular, 3 deep", "", 0.9, tree=tree) for tree in ((0, (1, (2, 3))), (1, (0, (2, 3))))
    )
    assert [found.name for found in arithmetic.contrasts(printed(one), printed(other))] == ["row order"]
    assert not list(arithmetic.contrasts(printed(one), printed(one)))


def groupnorm(by_halves=False, more=1.0):
    """GroupNorm of two groups in NumPy's order, or in halves; or too large by a factor."""

    def groupnorm_fwd(x, num_groups, eps):
        r = x.float().reshape(x.shape[0] * num_groups, -1)
        n, half = r.shape[1], r.shape[1] // 3
        total = (
            (lambda t: t[:, :half].sum(1, keepdim=True) + t[:, half:].sum(1, keepdim=True))
            if by_halves
            else (lambda t: t.sum(1, keepdim=True))
        )
        d = r - total(r) / n
        y = d * (total(d * d) / n + eps).rsqrt() * more
        return y.reshape(x.shape).to(x.dtype)

    return groupnorm_fwd


def exact(one, other):
    runners = [InProcess(Kernel("k", "groupnorm_fwd", run=function), "cpu") for function in (one, other)]
    spec = CaseSpec((2, 6, 5), num_groups=2, weight=False, bias=False)
    found = Difference(Gap("y", "", Element((0,), 0.0, 1.0, 1.0)), spec, 1)
    return arithmetic.exact_sums(Walk(OPS["groupnorm_fwd"], Settings(isolate=False), tuple(runners)), (found,))


def test_exact_sums_tell_an_order_from_what_follows():
    order = exact(groupnorm(), groupnorm(by_halves=True))
    assert (order.differing, order.spec.shape) == ((), (2, 6, 172))
    assert exact(groupnorm(), groupnorm(more=1 + 2.0**-20)).differing == ("y",)
    assert exact(groupnorm(), groupnorm()) is None, "random x do not differ either"
