"""`pytest --andrea-plugin NAME` as its user sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from andrea.testing.contract import contracts_of

pytest_plugins = ["pytester"]
COUNT = {kind: len(contracts_of(kind)) for kind in ("bandit", "limit", "source", "stop")}


@pytest.fixture
def project(pytester):
    """Return a project with a test of its own; pytest runs in processes of its own, as a user would run it."""
    pytester.makeini("[pytest]\naddopts = -p no:hypothesispytest -p no:anyio\n")  # slow to load, and of no use here
    pytester.makepyfile(test_own="def test_own():\n    assert True\n")
    return pytester


def test_the_contracts_of_a_plugin_are_tests(project):
    """Each contract is a test with a readable id, and without paths nothing else is run."""
    result = project.runpytest_subprocess("--andrea-plugin", "limit.floors", "-v")
    result.assert_outcomes(passed=COUNT["limit"])
    result.stdout.fnmatch_lines(["*limit.floors::resume_is_exact PASSED*", "*limit.floors::limits_survive_extremes *"])
    result.stdout.no_fnmatch_line("*test_own*")


def test_paths_are_run_beside_it(project):
    """With a path, its tests come first."""
    result = project.runpytest_subprocess(
        "test_own.py", "--andrea-plugin", "bandit.uniform", "-k", "test_own or docstring"
    )
    result.assert_outcomes(passed=2, deselected=COUNT["bandit"] - 1)


def test_one_contract_can_be_chosen(project):
    """-k works on contracts as on other tests."""
    result = project.runpytest_subprocess("--andrea-plugin", "bandit.uniform", "-k", "docstring")
    result.assert_outcomes(passed=1, deselected=COUNT["bandit"] - 1)


def test_a_broken_contract_is_a_failure_that_says_what_was_promised(project):
    """A reader without options fails, and the message tells the promise, the fault, and no traceback of the kit."""
    result = project.runpytest_subprocess("--andrea-plugin", "source.text", "-k", "gives_documents")
    result.assert_outcomes(failed=1, deselected=COUNT["source"] - 1)
    result.stdout.fnmatch_lines(
        [
            "source.text must keep: It gives documents that have a text, a name and a group.",
            "*needs the option 'path'*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_options_reach_the_plugin(project):
    """--andrea-option sets options, of a reader those of the source."""
    project.makefile(".txt", text="One paragraph.\n")
    given = ["--andrea-plugin", "source.text", "--andrea-option", "path=text.txt"]
    result = project.runpytest_subprocess(*given, "-k", "source_")
    result.assert_outcomes(passed=3, deselected=COUNT["source"] - 3)


def test_with_two_plugins_an_option_needs_its_plugins_name(project):
    """Else it would be anyone's guess whose it is."""
    both = ["--andrea-plugin", "bandit.uniform", "--andrea-plugin", "stop.max_steps", "-k", "docstring"]
    result = project.runpytest_subprocess(*both, "--andrea-option", "steps=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*which plugin?*"])
    result = project.runpytest_subprocess(*both, "--andrea-option", "stop.max_steps.steps=3")
    result.assert_outcomes(passed=2, deselected=COUNT["bandit"] + COUNT["stop"] - 2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--andrea-plugin", "bandit.ucb"], "*did you mean bandit.ucb1*"),
        (["--andrea-plugin", "bandit.ucb1", "--andrea-option", "explore=1"], "*bandit.ucb1 has no option 'explore'*"),
        (["--andrea-plugin", "bandit.ucb1", "--andrea-option", "explore"], "*--andrea-option 'explore' is not KEY*"),
    ],
)
def test_mistakes_of_the_user_are_usage_errors(project, arguments, line):
    """A wrong name or option ends pytest with what to type instead, and no traceback."""
    result = project.runpytest_subprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line])
    assert "Traceback" not in result.stderr.str()


def test_a_session_without_it_loads_nothing_of_ours():
    """The module that pytest loads in every session brings in neither loop nor registry nor any plugin."""
    code = (
        "import sys, andrea.testing.pytest_plugin\n"
        "others = ('rich', 'cattrs', 'typer', 'cuda.bindings')\n"
        "print(*sorted(m for m in sys.modules if m.startswith('andrea') or m in others))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    allowed = {"andrea", "andrea.errors", "andrea.plugin", "andrea.rng", "andrea.types"}
    assert set(loaded) == allowed | {"andrea.testing", "andrea.testing.pytest_plugin"}
