"""The check `nonfinite`: a number where NaN or infinity belongs."""

from dataclasses import replace

import pytest
from checking import SPEC, findings, layernorm_fwd


@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
def test_nonfinite_catches_what_hides_it(special):
    def hiding(x, weight, bias, eps, normalized_shape):
        return layernorm_fwd(x.nan_to_num(0, 0, 0), weight, bias, eps, normalized_shape)

    spec = replace(SPEC, special=special)
    assert {("nonfinite", "y"), ("nonfinite", "mean"), ("nonfinite", "rstd")} == findings(hiding, spec)
    assert findings(layernorm_fwd, spec) == set()
