"""Definitions: loaded once, and found inside of those that may call them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planaria.workers.definitions import Definitions
from planaria.workers.failures import StepConfigError


def workflow(**workflows: Any) -> Any:
    return SimpleNamespace(tools={}, models={}, workflows=workflows)


INNERMOST = workflow()
INNER = workflow(innermost=INNERMOST)
OUTER = workflow(inner=INNER, broken=3)


def find(*within: str) -> Any:
    definitions = Definitions(Path("modules"), lambda source: OUTER)
    return definitions.find({"entry": "flows.py:outer", "within": list(within)})


def test_within_leads_from_one_definition_to_the_next() -> None:
    assert OUTER is find()
    assert INNER is find("inner")
    assert INNERMOST is find("inner", "innermost")


def test_definitions_within_one_source_are_loaded_once() -> None:
    loaded: list[Any] = []

    def load(source: Any) -> Any:
        loaded.append(source)
        return OUTER

    definitions = Definitions(Path("modules"), load)
    for within in ([], ["inner"], ["inner", "innermost"], ["inner"]):
        definitions.find({"entry": "flows.py:outer", "within": within})
    definitions.find({"entry": "flows.py:outer"})

    assert [{"entry": "flows.py:outer"}] == loaded


@pytest.mark.parametrize(
    ("within", "text"),
    [
        (("gone",), "flows.py:outer has no workflow 'gone'; there are: broken, inner"),
        (("inner", "gone"), "flows.py:outer/inner has no workflow 'gone'; there are: innermost"),
        (("inner", "innermost", "gone"), "there are: none"),
        (("broken",), "flows.py:outer/broken is an int, no Workflow"),
    ],
)
def test_missing_definition_is_named(within: tuple[str, ...], text: str) -> None:
    with pytest.raises(StepConfigError, match=text):
        find(*within)


def test_pinned_modules_have_their_folder() -> None:
    definitions = Definitions(Path("modules"), lambda source: OUTER)

    assert Path("modules/abc") == definitions.pin_of({"modulesRef": "abc"})
