"""Where a case has its special values: in one input, and an infinity beside each NaN where it has both."""

import numpy as np
import pytest

from verify_norm.cases import make
from verify_norm.core.contract import Contract
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec


def made(op, **fields):
    return make.case(CaseSpec(**{"shape": (3, 8)} | fields), OPS[op], Contract())


PLACES = {"first": [(0, 0, 0)], "middle": [(2, 1, 3)], "last": [(4, 2, 5)], "rows": [(0, 0, 0), (2, 1, 1), (4, 2, 2)]}
PLACES["row"] = [(2, *place) for place in np.ndindex(3, 6)]


@pytest.mark.parametrize("at", PLACES)
def test_a_special_value_is_in_one_input_where_the_case_says(at):
    spec = {"shape": (5, 3, 6), "special": "-inf", "special_at": at}
    for name in ("x", "residual", "weight"):
        exact = made("add_layernorm_fwd", special_in=name, **spec).exact
        assert [n for n, values in exact.items() if np.isinf(values).any()] == [name]
        if name != "weight":
            assert [tuple(map(int, place)) for place in np.argwhere(exact[name] == -np.inf)] == PLACES[at]
    shared = made("layernorm_bwd", special_in="dy", dy_layout="expanded", **spec).exact["dy"]
    assert (shared == shared[:1]).all()
    assert np.isinf(shared).any()
    assert np.isinf(made("add_rmsnorm_bwd", **spec).exact["residual_out"]).any()  # which stands for x
    assert np.isinf(made("batchnorm_fwd", special_in="running_var", **spec).exact["running_var"]).any()


def test_in_rows_each_other_one_has_a_nan_beside_its_infinity():
    """And each other one of these has the infinity alone: no row is NaN by a rule about NaN alone."""
    values = made("rmsnorm_fwd", shape=(11, 6), special="nan+inf", special_at="rows").exact["x"]
    seen = [(int(np.isnan(row).sum()), int(np.isinf(row).sum())) for row in values]
    assert seen == [(1, 1), (0, 0), (0, 2), (0, 0)] * 2 + [(1, 1), (0, 0), (0, 2)]


def test_in_a_whole_row_nan_and_infinity_take_turns():
    values = made("rmsnorm_fwd", shape=(5, 2, 6), special="nan+inf", special_at="row").exact["x"]
    assert np.isnan(values[2]).tolist() == [[True, False] * 3] * 2 == (~np.isinf(values[2])).tolist()
    assert np.isfinite(np.delete(values, 2, 0)).all()


@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_an_infinity_is_beside_a_nan_in_its_row(at):
    values = made("rmsnorm_fwd", shape=(5, 3, 6), special="nan+inf", special_at=at).exact["x"]
    (place,) = np.argwhere(np.isnan(values))
    assert [tuple(map(int, place))] == PLACES[at]
    assert np.argwhere(np.isinf(values)).tolist() == [[*place[:2], (place[2] + 1) % 6]]
