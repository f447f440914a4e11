"""Where results come from: commit, command, versions and sources, as git and the files on disk say."""

import re
import subprocess
from pathlib import Path

import pytest

from crossknn.evaluate import provenance
from tests.paths import ROOT


def test_a_run_from_this_checkout_names_its_commit():
    if not (ROOT / ".git").exists():
        pytest.skip("these tests do not run from a checkout")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = provenance.describe_commit()
    assert found["commit"] == head.stdout.strip()
    assert isinstance(found["uncommitted changes"], bool)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a module and a result, committed."""
    for name in ("crossknn/__init__.py", "benchmarks/results/one.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("0\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_changes_to_results_are_no_changes(checkout):
    assert provenance.describe_commit(checkout)["uncommitted changes"] is False
    (checkout / "benchmarks" / "results" / "one.json").write_text("1\n")
    assert provenance.describe_commit(checkout)["uncommitted changes"] is False
    (checkout / "crossknn" / "__init__.py").write_text("1\n")
    assert provenance.describe_commit(checkout)["uncommitted changes"] is True


def test_a_package_that_is_installed_within_another_project_has_no_commit(checkout):
    installed = checkout / ".venv" / "site-packages"
    (installed / "crossknn").mkdir(parents=True)
    (installed / "crossknn" / "__init__.py").write_text("")
    assert provenance.describe_commit(installed) == {}


def test_a_command_has_no_path_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = f"crossknn bench set {tmp_path}/data/scifact --scorer=/models/ce --encoder ../mini --budgets 50,100"
    assert provenance.portable(command) == (
        "crossknn bench set data/scifact --scorer=ce --encoder ../mini --budgets 50,100"
    )


def test_sources_are_the_imported_files_and_what_changed_is_known(tmp_path):
    sources = dict(provenance.digest_sources())
    assert "crossknn/_checks.py" in sources
    assert not any(name.startswith(("crossknn/cli/", "tests/")) for name in sources)
    assert all(re.fullmatch(r"[0-9a-f]{12}", digest) for digest in sources.values())
    assert provenance.changed_sources(sources) == []
    two = {name: sources[name] for name in ("crossknn/_checks.py", "crossknn/__init__.py")}
    (tmp_path / "crossknn").mkdir()
    copy = tmp_path / "crossknn" / "__init__.py"
    copy.write_bytes(Path(ROOT, "crossknn", "__init__.py").read_bytes().replace(b"\n", b"\r\n"))
    assert provenance.changed_sources(two, tmp_path) == ["crossknn/_checks.py"]
    copy.write_text("changed")
    assert provenance.changed_sources(two, tmp_path) == list(two)


def test_a_run_says_what_it_takes_to_repeat_it():
    found = provenance.describe_run("make all", seed=3)
    assert (found["command"], found["seed"]) == ("make all", 3)
    assert "cores" in found["hardware"]
    assert {"python", "crossknn", "numpy"} <= found["versions"].keys()
    assert "seed" not in provenance.describe_run("make all")
