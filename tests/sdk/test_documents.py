"""Workflow files are read so that nothing is lost; a broken one is named with its line."""

from pathlib import Path

import pytest

from planaria.documents import DOCUMENT_BYTES_MAX, read_document
from planaria.protocol.errors import UsageError


def test_json_and_yaml_give_the_same_document(tmp_path: Path) -> None:
    json_file, yaml_file = tmp_path / "flow.json", tmp_path / "flow.yaml"
    json_file.write_text('{"a": {"b": [1, 2.5, null, true, "x"]}, "until": "2030-01-31"}')
    yaml_file.write_text("a: {b: [1, 2.5, null, true, x]}\nuntil: 2030-01-31\n")

    assert read_document(json_file) == read_document(yaml_file)
    assert read_document(yaml_file)["until"] == "2030-01-31"


def test_yaml_anchors_and_merges_are_read(tmp_path: Path) -> None:
    file = tmp_path / "flow.yml"
    file.write_text("base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  y: 3\n")

    assert read_document(file)["other"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("f.json", b'{\n"a": 1,\n"b" 2}', r"line 3: no JSON: Expecting ':' delimiter \(column 5\)"),
        ("f.json", b"", "line 1: no JSON: Expecting value"),
        ("f.json", b'{"a": 1, "b": {"c": 1, "c": 2}}', "has the key 'c' twice in one object"),
        ("f.json", b"[1]", "holds no map; expected an LWIR document"),
        ("f.json", b'{"a": ' + b"9" * 5_000 + b"}", "is no JSON: Exceeds the limit"),
        ("f.json", b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        ("f.json", b'{\n\n"a": "\xff"}', "line 3: it is no UTF-8 text there"),
        ("f.yaml", b"a: 1\nb: [1,\nc: 2\n", "line 4: no YAML: expected ',' or"),
        ("f.yaml", b"a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: the key 'c' is there twice"),
        ("f.yaml", b"a: !!python/object/apply:os.getcwd []", "line 1: no YAML: could not determ"),
        ("f.yaml", b"a: " + b"[" * 600, "nested too deeply"),
        ("f.yaml", b"a: \x00", "is no YAML: unacceptable character"),
        ("f.yaml", b"", "holds no map"),
        ("f.yaml", b"a: *unknown", "line 1: no YAML: found undefined alias"),
    ],
)
def test_broken_file_is_named_with_its_place(
    tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UsageError, match=text) as refused:
        read_document(tmp_path / name)

    assert str(tmp_path / name) in str(refused.value)


def test_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(DOCUMENT_BYTES_MAX + 1)

    with pytest.raises(UsageError, match="can't be read: No such file"):
        read_document(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="can't be read: Is a directory"):
        read_document(tmp_path)
    with pytest.raises(UsageError, match=r"has 4,194,305 bytes; at most 4,194,304 are read"):
        read_document(large)
