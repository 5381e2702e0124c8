"""What `make test` and `make quick` leave out: some cases of each sweep, or of each test, never all of them."""

from types import SimpleNamespace

import pytest


class Item(SimpleNamespace):
    """A test as pytest collects it."""

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, name):
        self.marks.append(getattr(pytest.mark, name).mark)


def of(function, path, count, *marks):
    return [Item(name=f"{function}[{n}]", function=function, path=path, marks=list(marks)) for n in range(count)]


@pytest.fixture
def choose(request):
    """Return the function that marks and leaves out cases of items, with --cases, as conftest.py does."""
    (conftest,) = (p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "SERIES"))

    def of(items, most=None):
        told = []
        hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
        step = conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: most, hook=hook), items)
        next(step)  # now pytest deselects what -m leaves out
        assert next(step, None) is None
        return told

    return of


def test_one_case_in_n_of_each_sweep_is_left(choose):
    sweeps = [of("a", "one", 10, pytest.mark.sampled(4).mark), of("a", "two", 1, pytest.mark.sampled(4).mark)]
    others = of("b", "one", 5)
    items = [*others, *sweeps[0], *sweeps[1]]
    assert choose(items) == []
    assert len(items) == 16
    left = [[item.name for item in items if not item.get_closest_marker("nightly")] for items in (*sweeps, others)]
    assert [len(names) for names in left] == [3, 1, 5]
    assert left[0] != ["a[0]", "a[4]", "a[8]"]  # which might all be forwards


def test_at_most_so_many_cases_of_each_test_run(choose):
    a, b = of("a", "one", 10), of("b", "one", 2)
    items, turned = [*a, *b], [*b, *reversed(a)]
    left_out = choose(items, 3)
    choose(turned, 3)
    names = sorted(item.name for item in items)
    assert [sum(item in some for item in items) for some in (a, b)] == [3, 2]
    assert names == sorted(item.name for item in turned)
    assert sorted([*names, *(item.name for item in left_out)]) == sorted(item.name for item in [*a, *b])
