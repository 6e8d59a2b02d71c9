"""Workflow documents in files: JSON and YAML, read so that nothing in them is lost or changed."""

import json
from pathlib import Path
from typing import Any

from planaria.protocol.errors import UsageError

SUFFIXES = frozenset({".json", ".yaml", ".yml"})
# A document of 1,000 steps with prompts of 2,000 characters has 2 MB; yaml reads about 100 KB a
# second, and json hundreds of times as much.
DOCUMENT_BYTES_MAX = 4 << 20


def read_document(path: Path) -> dict[str, Any]:
    """Returns the document in a JSON or YAML file; it isn't validated yet.

    YAML's own types beyond JSON's are not made: a date stays the text that it is.

    Raises:
        UsageError: it can't be read or parsed, or says a thing twice; names file and line.
    """
    try:
        size = path.stat().st_size
        if size > DOCUMENT_BYTES_MAX:
            raise UsageError(
                message=f"the workflow file {str(path)!r} has {size:,} bytes; at most "
                f"{DOCUMENT_BYTES_MAX:,} are read"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            message=f"the workflow file {str(path)!r} can't be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _broken(path, line, "it is no UTF-8 text there") from error
    try:
        is_json = path.suffix.lower() == ".json"
        document = _read_json(path, text) if is_json else _read_yaml(path, text)
    except RecursionError as error:
        raise UsageError(
            message=f"the workflow file {str(path)!r} is nested too deeply to be read"
        ) from error
    if not isinstance(document, dict):
        raise UsageError(
            message=f"the workflow file {str(path)!r} holds no map; expected an LWIR document: "
            "apiVersion, kind, metadata, steps"
        )
    return document


def _read_json(path: Path, text: str) -> Any:
    def make_map(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise UsageError(
                    message=f"the workflow file {str(path)!r} has the key {key[:60]!r} twice in "
                    "one object: remove one"
                )
            made[key] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=make_map)
    except json.JSONDecodeError as error:
        raise _broken(path, error.lineno, f"no JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:  # such as a number of more digits than Python reads
        raise UsageError(message=f"the workflow file {str(path)!r} is no JSON: {error}") from error


def _read_yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_make_yaml_loader(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _broken(path, line, f"no YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(message=f"the workflow file {str(path)!r} is no YAML: {error}") from error


def _make_yaml_loader(path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML of the JSON types, every key once."""

        # The resolvers of timestamps are left out: `2030-01-31` is text, as it is in JSON.
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
                if key is not None and key != "<<" and (key_node.tag, key) in seen:
                    line = key_node.start_mark.line + 1
                    raise _broken(path, line, f"the key {key[:60]!r} is there twice: remove one")
                seen.add((key_node.tag, key))
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    return Loader


def _broken(path: Path, line: int, reason: str) -> UsageError:
    return UsageError(message=f"the workflow file {str(path)!r}, line {line}: {reason}")
