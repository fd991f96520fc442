"""``pytest --andrea-plugin NAME`` runs the contracts of a plugin, one test each.

pytest imports this module in every session where andrea is installed, so everything else is imported when it is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from andrea.testing.promise import Contract, Subject


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    group = parser.getgroup("andrea", "contracts of andrea plugins")
    group.addoption(
        "--andrea-plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="run the contracts of an installed plugin; repeatable. Without paths, nothing else is run",
    )
    group.addoption(
        "--andrea-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option to test it with (of a reader: of the source); repeatable; with several plugins NAME.KEY=VALUE",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Leave the project's own tests alone when only a plugin was named."""
    if config.getoption("--andrea-plugin") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the contracts behind the other tests."""
    names = list(dict.fromkeys(config.getoption("--andrea-plugin")))
    if not names:
        return
    from andrea.errors import AndreaError

    try:
        options = _options(config.getoption("--andrea-option"), names)
        for name in names:
            tests = list(Contracts.from_parent(session, name=name, options=options[name]).collect())
            report = pytest.CollectReport(name, "passed", longrepr=None, result=[*tests])
            config.hook.pytest_collectreport(report=report)  # the terminal counts by these
            items.extend(tests)
    except AndreaError as error:
        raise pytest.UsageError(str(error)) from None


def _options(settings: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Return options by plugin name; a key without a plugin's name means the only one."""
    from andrea.errors import AndreaError
    from andrea.settings import parse_setting

    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for setting in settings:
        key, value = parse_setting(setting, "--andrea-option", "exploration=2")
        owner = next((name for name in names if key.startswith(f"{name}.")), None)
        if owner is None and len(names) > 1:
            raise AndreaError(f"--andrea-option {setting}: which plugin?", f"write {names[0]}.{setting}")
        owner, key = (owner, key[len(owner) + 1 :]) if owner else (names[0], key)
        found[owner][key] = value
    return found


class Contracts(pytest.Collector):
    """The contracts of one plugin; they share a folder and the runs that were watched."""

    def __init__(self, *, options: dict[str, Any], name: str, **kwargs: Any) -> None:
        super().__init__(name=name, nodeid=name, **kwargs)
        self._options = options
        self._open = ExitStack()

    def collect(self) -> Iterator[pytest.Item]:
        """Return a test for each contract.

        Raises
        ------
        AndreaError
            When there is no such plugin, it cannot be imported, or an option is wrong.
        """
        from andrea.registry import find
        from andrea.testing.contract import contracts_of, subject

        tested = self._open.enter_context(subject(self.name, find(self.name).load(), self._options))
        self.session.config.add_cleanup(self._open.close)
        tested.check_options()
        return iter(
            [
                ContractTest.from_parent(self, name=contract.name, contract=contract, subject=tested)
                for contract in contracts_of(tested.kind)
            ]
        )


class ContractTest(pytest.Item):
    """One contract of one plugin."""

    def __init__(self, *, contract: Contract, subject: Subject, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._contract, self._subject = contract, subject

    def runtest(self) -> None:
        """Check it."""
        self._contract.check(self._subject)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the promise and the fault; an exception of the plugin's own with its traceback."""
        from andrea.testing.promise import ContractError

        if isinstance(excinfo.value, ContractError):
            return f"{self._subject.name} must keep: {self._contract.promise}\n{excinfo.value}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return how the test is called in reports."""
        return self.config.rootpath, None, self.name
