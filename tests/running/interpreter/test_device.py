"""What launchers ask torch and Triton for, where the kernel is interpreted."""

import pytest
import torch
import triton

from verify_norm.running.interpreter.device import MULTIPROCESSORS

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is interpreted")


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_the_device_of_a_tensor_on_the_cpu_is_entered_and_left(device):
    with torch.cuda.device(device):
        pass
    with pytest.raises(ZeroDivisionError), torch.cuda.device(device):
        print(1 / 0)


def test_a_gpu_that_does_not_exist_is_an_error_as_before():
    with pytest.raises(RuntimeError, match="CUDA"), torch.cuda.device(0):
        pass
    with pytest.raises(AssertionError, match="CUDA"):
        torch.cuda.get_device_properties(0)
    with pytest.raises(AssertionError, match="CUDA"):
        torch.cuda.get_device_properties()


def test_torch_and_triton_tell_the_same_number_of_multiprocessors():
    driver = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(driver.get_current_device())
    assert properties["multiprocessor_count"] == MULTIPROCESSORS
    assert torch.cuda.get_device_properties(torch.ones(1).device).multi_processor_count == MULTIPROCESSORS


def test_a_file_may_ask_for_the_device_and_the_target_when_it_is_imported():
    driver = triton.runtime.driver.active
    assert driver.get_active_torch_device() == torch.device("cpu")
    assert driver.get_current_target().backend not in ("cuda", "hip")
    assert driver.is_active()
