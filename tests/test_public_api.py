"""`__all__` is the whole surface, and every name in it is there, documented and typed."""

import inspect
import re
from pathlib import Path

import pytest

import crossknn
from crossknn import testing


@pytest.mark.parametrize("name", crossknn.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(crossknn, name)
    assert inspect.getdoc(thing)
    assert thing.__module__.startswith("crossknn.")


SUBPACKAGES = [path.parent.name for path in Path(crossknn.__file__).parent.glob("*/__init__.pyi")]


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_every_public_name_of_a_subpackage_is_there_and_documented(name):
    package = getattr(crossknn, name)
    assert set(dir(package)) == set(package.__all__)
    for public in package.__all__:
        assert inspect.getdoc(getattr(package, public))


def test_dir_lists_the_public_names_and_unknown_ones_are_refused():
    assert set(dir(crossknn)) == set(crossknn.__all__)
    with pytest.raises(AttributeError, match="module 'crossknn' has no attribute 'nonsense'"):
        _ = crossknn.nonsense


def test_the_testing_module_names_its_surface():
    public = {name for name, thing in vars(testing).items() if getattr(thing, "__module__", "") == testing.__name__}
    assert {name for name in public if not name.startswith("_")} == set(testing.__all__)


def test_every_error_is_drawn_in_the_tree():
    from crossknn import errors

    tree = set(re.findall(r"[├└]── (\w+)", errors.__doc__))
    assert tree == {name for name in vars(errors) if name[0].isupper()} - {"CrossKnnError"}


def test_the_version_is_the_one_of_the_changelog_or_newer():
    changelog = (Path(crossknn.__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased" in changelog or f"## {crossknn.__version__}" in changelog
