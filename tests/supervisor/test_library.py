"""What the kernel reads by hash: blobs that it has made, before and after they are stored."""

from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import canonical_bytes
from planaria.protocol.errors import IntegrityError
from planaria.protocol.payloads import Ref
from planaria.supervisor.blobs import BlobStore
from planaria.supervisor.library import BlobLibrary

VALUE = {"text": "x" * 300_000}
DATA = canonical_bytes(VALUE)


def make(tmp_path: Path) -> tuple[BlobStore, BlobLibrary]:
    store = BlobStore(tmp_path)
    return store, BlobLibrary(store)


def ref(value: Any) -> Ref:
    return Ref(blob_ref(canonical_bytes(value)))


def test_inline_value_is_itself(tmp_path: Path) -> None:
    _, library = make(tmp_path)

    assert library.value(VALUE) is VALUE


def test_kept_blob_is_read_before_it_is_stored(tmp_path: Path) -> None:
    store, library = make(tmp_path)
    library.keep(DATA)

    assert library.value(ref(VALUE)) == VALUE
    assert not store.exists(blob_ref(DATA)), "who commits stores it"


def test_kept_blob_is_let_go_once_it_is_stored(tmp_path: Path) -> None:
    store, library = make(tmp_path)
    library.keep(DATA)
    store.write(DATA)
    library.keep(canonical_bytes([1]))
    (tmp_path / blob_ref(DATA)["ref"]).unlink()

    with pytest.raises(IntegrityError):
        library.value(ref(VALUE))
    assert library.value(ref([1])) == [1]


def test_stored_value_is_read_from_the_store_once(tmp_path: Path) -> None:
    store, library = make(tmp_path)
    store.write(DATA)
    assert library.value(ref(VALUE)) == VALUE
    (tmp_path / blob_ref(DATA)["ref"]).unlink()
    assert library.value(ref(VALUE)) == VALUE
