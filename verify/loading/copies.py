"""Copies of an nn.Module, by each of the ways in which programs make them: a copy computes what the module does."""

import copy
import io
import warnings
from collections.abc import Callable

import torch
from torch import nn

Copy = Callable[[nn.Module, Callable[[], nn.Module]], nn.Module]  # of a module, and what makes another one like it


def of_module(how: Copy, module: nn.Module, like: Callable[[], nn.Module] = nn.Module) -> nn.Module:
    """Return a copy of a module; the module itself where it cannot be copied so."""
    try:
        return how(module, like)
    except Exception:
        return module


def deep(module: nn.Module, like: Callable[[], nn.Module]) -> nn.Module:
    """Return a copy that shares nothing with the module."""
    return copy.deepcopy(module)


def shallow(module: nn.Module, like: Callable[[], nn.Module]) -> nn.Module:
    """Return a copy that shares its parameters and buffers with the module."""
    return copy.copy(module)


def saved(module: nn.Module, like: Callable[[], nn.Module]) -> nn.Module:
    """Return the module as it comes back from a file, which is a pickle, for example between processes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(module, file)
        file.seek(0)
        loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def loaded(module: nn.Module, like: Callable[[], nn.Module]) -> nn.Module:
    """Return another module of the same options that has loaded the module's state, for example from a checkpoint."""
    another = like()
    another.load_state_dict(module.state_dict())
    return another
