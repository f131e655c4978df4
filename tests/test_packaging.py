"""What is shipped: metadata, wheel and sdist, and the files that make the repository one to rely on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nearkin
from test_documents import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TOOLS = {"test", "docs", "benchmark", "servers"}
"""Extras that nearkin itself never imports: what they bring may be as new as it likes."""
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
YAML = [
    *WORKFLOWS,
    *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]


def pinned(name: str) -> dict[str, str]:
    """Package → version of a constraints file."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (Requirement(line) for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}


def lower_bounds() -> dict[str, str]:
    """Package → lower bound, of everything that nearkin imports."""
    lists = [PROJECT["dependencies"], *(EXTRAS[name] for name in EXTRAS.keys() - TOOLS)]
    found = [Requirement(text) for texts in lists for text in texts]
    assert all(re.fullmatch(r">=[\d.]+", str(one.specifier)) for one in found)
    return {canonicalize_name(one.name): str(one.specifier).removeprefix(">=") for one in found}


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def supported_pythons() -> list[str]:
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in PROJECT["classifiers"]
    )
    return [match[1] for match in found if match]


def test_the_version_is_said_once():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?\w+)?", nearkin.__version__)
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_classifiers_exist_and_begin_where_the_code_does():
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known
    assert PROJECT["requires-python"] == f">={supported_pythons()[0]}"
    assert not [
        one for one in PROJECT["classifiers"] if one.startswith("License ::")
    ]  # the expression says it


def test_the_lowest_versions_are_pyprojects_bounds():
    assert pinned("constraints-min.txt") == lower_bounds()


def test_what_the_tests_ran_on_is_within_the_bounds():
    ran_on = pinned("constraints.txt")
    texts = PROJECT["dependencies"] + [
        text for name, texts in EXTRAS.items() if name != "tracking" for text in texts
    ]
    for one in map(Requirement, texts):
        if one.name != "nearkin":
            assert one.specifier.contains(ran_on[canonicalize_name(one.name)]), one


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_files_parse(path):
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_jobs_have_names_limits_and_least_rights(path):
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found["name"] == path.stem
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert job["name"]
        assert job["timeout-minutes"] <= 90
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_workflows_try_every_python_that_the_classifiers_promise():
    jobs = workflow("tests.yml")["jobs"]
    assert set(jobs) == {"check", "minimum-versions", "wheel", "docs"}
    assert jobs["check"]["strategy"]["matrix"]["python"] == supported_pythons()
    (minimum,) = (step["with"] for step in jobs["minimum-versions"]["steps"] if "setup-python" in str(step))
    assert minimum["python-version"] == supported_pythons()[0]


def test_workflows_run_the_readmes_test_command():
    commands = [step.get("run") for step in workflow("tests.yml")["jobs"]["check"]["steps"]]
    assert "pip install -c constraints.txt -e '.[test]' && ./check" in commands


def test_pre_commit_has_the_tools_of_check():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"]  # nothing is fetched
    tools = {" ".join(hook["entry"].split()[:2]) for hook in hooks[0]["hooks"]}
    check = (ROOT / "check").read_text(encoding="utf-8")
    lines = [line.partition(" >")[0] for line in check.splitlines()]
    commands = {line.replace(" --check", "").removesuffix(" .") for line in lines if line}
    wanted = {one for one in commands if re.match(r"ruff|mypy|lint-imports", one)}
    assert len(wanted) == 4
    assert tools == wanted


@pytest.mark.parametrize(
    ("mypy", "pytest_", "expected"), [(0, 0, 0), (2, 0, 1), (0, 1, 1), (2, 5, 1), (0, 5, 5)]
)
def test_check_fails_where_types_or_tests_do_and_tells_both(mypy, pytest_, expected, tmp_path):
    """Types are looked at beside the tests."""
    codes = {"ruff": 0, "lint-imports": 0, "mypy": mypy, "pytest": pytest_}
    for tool, code in codes.items():
        (tmp_path / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\nexit {code}\n')
        (tmp_path / tool).chmod(0o755)
    surroundings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NEARKIN_TEST_PROCESSES": "3"}
    done = subprocess.run(
        [ROOT / "check", "-k", "losses"], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected
    assert [line for line in done.stdout.splitlines() if not line.startswith("ruff")] == [
        "lint-imports",
        "pytest -n 3 -k losses",
        "mypy",
    ]


def test_no_file_of_the_project_names_a_package_index():
    # Put together here, so that this file does not name one either.
    hosts = [f"{host}.org" for host in ("pypi", "test.pypi")] + ["python" + "hosted", "--index" + "-url"]
    for path in (
        *YAML,
        ROOT / "pyproject.toml",
        *ROOT.glob("*.md"),
        *ROOT.glob("*.txt"),
        *ROOT.glob("docs/*.md"),
    ):
        text = path.read_text(encoding="utf-8")
        assert not [host for host in hosts if host in text], path


def packaged_files() -> set[str]:
    """Every file of the package, code and data, as the wheel names it."""
    source = ROOT / "src"
    files = (path for path in (source / "nearkin").rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """Wheel and sdist, built by the backend that pyproject names, without a network (a second or two)."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    code = (
        f"from hatchling import build; build.build_wheel({str(folder)!r}); build.build_sdist({str(folder)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    assert built["wheel"].name == f"nearkin-{nearkin.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith("nearkin-")}
    assert names == packaged_files()
    for kind in (
        "benchmark/plans/*.toml",
        "recipe/published/*.toml",
        "tournament/published/*.csv",
        "tournament/report/templates/*.j2",
        "tournament/report/templates/*.css",
        "tournament/report/templates/*.js",
        "explain/*.html",
        "py.typed",
    ):
        assert [name for name in names if Path(name).match(f"nearkin/{kind}")], kind


def test_the_sdist_holds_what_a_distributor_needs(built):
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in packaged_files()} <= names
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "pyproject.toml",
        "tests/conftest.py",
    } <= names
    assert not [name for name in names if name.startswith((".ci", "benchmarks/results"))]


@pytest.fixture
def environment(tmp_path) -> Path:
    """A new virtual environment that sees what the running one has, but not its editable nearkin."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    (own,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (own / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    return folder / "bin"


def run(*command: object, cwd: Path) -> str:
    """Run a command without PYTHONPATH: the checkout must not stand in for what was installed."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_and_starts_in_an_empty_environment(built, kind, environment, tmp_path):
    if kind == "sdist" and "hatchling" not in run(environment / "python", "-m", "pip", "list", cwd=tmp_path):
        pytest.skip("the sdist needs hatchling in the running environment")
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(environment / "python", "-m", "pip", "install", *alone, built[kind], cwd=tmp_path)
    where = run(environment / "python", "-c", "import nearkin; print(nearkin.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    version = run(environment / "python", "-c", "import nearkin; print(nearkin.__version__)", cwd=tmp_path)
    assert version.strip() == nearkin.__version__
    assert "tournament" in run(environment / "nearkin", "--help", cwd=tmp_path)
    assert "360 runs" in run(environment / "nearkin", "benchmark", "thesis", "--show", cwd=tmp_path)
    chosen = [f"--set={one}" for one in ("terms=thesis", "data.name=cub200", "network.name=resnet50")]
    recipe = run(environment / "nearkin", "train", *chosen, "--show-recipe", cwd=tmp_path)
    assert tomllib.loads(recipe)["terms"] == "thesis"
