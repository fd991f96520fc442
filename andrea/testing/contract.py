"""The contract kit: holds a plugin against everything that a plugin promises."""

from __future__ import annotations

import textwrap
from typing import Any

from andrea.registry import find
from andrea.testing import each_kind, every_plugin  # noqa: F401  (importing them enters their contracts)
from andrea.testing.promise import CONTRACTS, Contract, ContractError, Subject, subject

__all__ = ["Contract", "ContractError", "Subject", "check_plugin", "check_plugin_object", "contracts_of", "subject"]


def contracts_of(kind: str) -> list[Contract]:
    """Return the contracts that bind a kind, in the order in which they are checked."""
    ordered = [one for one in CONTRACTS if not one.kinds] + [one for one in CONTRACTS if one.kinds]
    return [one for one in ordered if not one.kinds or kind in one.kinds]


def check_plugin(name: str, **options: Any) -> None:
    """Hold an installed plugin against every contract of its kind.

    Parameters
    ----------
    name
        As ``andrea plugins`` lists it.
    **options
        To test it with, instead of its defaults; of a reader, what a source says. Options that name sources can name
        those of `andrea.testing.SOURCES`.

    Raises
    ------
    ContractError
        With every contract that is broken.
    AndreaError
        When there is no such plugin, or an option is wrong.
    """
    check_plugin_object(find(name).load(), name, **options)


def check_plugin_object(target: Any, name: str, /, **options: Any) -> None:
    """Hold a plugin that is not installed against every contract: the module or class itself.

    Parameters
    ----------
    target
        What the entry point would name.
    name
        What it would be called; its kind decides the contracts.
    **options
        As of `check_plugin`.
    """
    with subject(name, target, options) as tested:
        tested.check_options()
        faults = {contract: fault_of(contract, tested) for contract in contracts_of(tested.kind)}
    if broken := [_told(contract, fault) for contract, fault in faults.items() if fault is not None]:
        raise ContractError(f"{name} breaks {len(broken)} of {len(faults)} contracts\n" + "\n".join(broken))


def _told(contract: Contract, fault: str) -> str:
    return f"{contract.name}: {contract.promise}\n{textwrap.indent(fault, '    ')}"


def fault_of(contract: Contract, tested: Subject) -> str | None:
    """Return what is wrong, or None; an exception of the plugin's own is a fault too."""
    try:
        contract.check(tested)
    except ContractError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
