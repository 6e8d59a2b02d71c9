"""Errors: each over the wire and back, and what their texts are made from."""

import pickle
import string
from typing import Any

import pytest

from planaria.protocol.codec import canonical_bytes, unpack
from planaria.protocol.errors import (
    ALWAYS_FAIL_RUN,
    CAUSE_CODES,
    EXIT_DONE,
    EXIT_SIGINT,
    NEVER_RETRIED,
    PlanariaError,
    RunFailedError,
    WorkflowInvalidError,
    error_from_wire,
    error_to_wire,
    shorten,
)
from planaria.protocol.expressions import ExpressionError
from planaria.protocol.limits import ERROR_TEXT_CHARS_MAX


def classes(root: type[PlanariaError] = PlanariaError) -> list[type[PlanariaError]]:
    below = [found for child in root.__subclasses__() for found in classes(child)]
    return [root, *below]


# Not those of the other folders: which of them are loaded depends on what else is tested.
SENT = [cls for cls in classes() if cls.__module__.startswith("planaria.protocol.")]


def names_in(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def make(cls: type[PlanariaError]) -> PlanariaError:
    fields: dict[str, Any] = {name: f"<{name}>" for name in names_in(cls.template)}
    if cls is ExpressionError:
        fields = {"message": "m", "path": ".args[0]"}
    if cls is WorkflowInvalidError:
        fields = {"name": "w", "findings": [{"code": "c", "path": "$.a", "message": "m"}]}
    if cls is RunFailedError:
        fields = {"run_id": "run_1", "cause_code": "step_failed", "message": "m"}
        fields["failed_step_path"] = "a[b].c"
    return cls(**fields)


@pytest.mark.parametrize("cls", SENT, ids=lambda cls: cls.__name__)
def test_error_is_the_same_on_the_other_side_of_the_wire(cls: type[PlanariaError]) -> None:
    error = make(cls)
    wire = unpack(canonical_bytes(error_to_wire(error)))
    back = error_from_wire(wire)

    assert type(back) is cls
    assert str(back) == str(error) and back.fields == error.fields
    assert back.exit_code == error.exit_code
    pickled = pickle.loads(pickle.dumps(error))
    assert type(pickled) is cls and str(pickled) == str(error)


@pytest.mark.parametrize("cls", SENT, ids=lambda cls: cls.__name__)
def test_text_is_made_from_the_fields_of_the_template(cls: type[PlanariaError]) -> None:
    error = make(cls)

    for name in error.fields.keys() & set(names_in(cls.template)):
        assert str(error.fields[name]) in str(error)
    assert str(error)


def test_error_of_a_later_version_is_still_an_error_with_its_fields() -> None:
    error = error_from_wire({"class": "MoonError", "fields": {"message": "m", "phase": 3}})

    assert type(error) is PlanariaError
    assert str(error) == "m" and error.phase == 3


@pytest.mark.parametrize("wire", [{}, {"class": None}, {"class": 5, "fields": None}])
def test_error_without_its_facts_is_still_an_error(wire: dict[str, Any]) -> None:
    assert isinstance(error_from_wire(wire), PlanariaError)


def test_missing_fields_leave_a_text_that_shows_what_is_there() -> None:
    for cls in SENT:
        if cls is not ExpressionError:
            assert str(cls(other="y"))
    with pytest.raises(AttributeError):
        _ = PlanariaError(message="m").other


def test_text_has_a_limit_and_says_that_it_was_cut() -> None:
    exact = "x" * ERROR_TEXT_CHARS_MAX
    assert shorten(exact) == exact
    cut = shorten(exact + "x")
    assert len(cut) <= ERROR_TEXT_CHARS_MAX and cut.endswith("[…cut off]")
    assert len(str(PlanariaError(message="x" * 100_000))) <= ERROR_TEXT_CHARS_MAX


def test_every_class_is_drawn_in_the_tree_with_its_exit_code() -> None:
    import planaria.protocol.errors as module

    tree = (module.__doc__ or "").splitlines()
    for cls in SENT:
        if cls.__module__ != module.__name__ or cls is PlanariaError:
            continue
        line = next((line for line in tree if cls.__name__ in line), None)
        assert line is not None, f"{cls.__name__} is missing in the tree"
        if "exit" in line:
            assert line.split("exit ")[1].split(":")[0].strip() == str(cls.exit_code)
    assert EXIT_DONE == 0 and EXIT_SIGINT == 130


def test_causes_are_a_closed_set() -> None:
    assert NEVER_RETRIED <= CAUSE_CODES and ALWAYS_FAIL_RUN <= CAUSE_CODES
    # What always fails the run is never tried again.
    assert ALWAYS_FAIL_RUN <= NEVER_RETRIED
