"""What a search plans: the corner table, and the shapes of models."""

from math import prod

import pytest

from verify_norm.cases import models
from verify_norm.core.dtypes import KERNEL_DTYPES
from verify_norm.core.ops import OPS
from verify_norm.core.settings import Settings
from verify_norm.search import planning


@pytest.mark.parametrize("name", ["layernorm_bwd", "rmsnorm_fwd", "groupnorm_fwd", "batchnorm_fwd"])
def test_a_gpu_gets_the_shapes_of_models_at_full_size_with_few_further_runs(name):
    op = OPS[name]
    gpu, cpu = (
        planning.table_of(op, Settings(device=device), KERNEL_DTYPES, frozen=False) for device in ("cuda:0", "cpu")
    )
    full, _ = models.model_cases(op, full=True, dtypes=KERNEL_DTYPES)
    assert [spec.shape for spec in gpu[1]] == [spec.shape for spec in full]
    assert max(prod(spec.shape) for spec in gpu[1]) > 2**23
    assert all(len(spec.further) < 4 for spec in gpu[1])
    assert cpu[1] == []
    asked = planning.table_of(op, Settings(device="cuda:0", shapes="models"), KERNEL_DTYPES, frozen=False)
    assert asked[:2] == ([], full)
