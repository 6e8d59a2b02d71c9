"""The blob stores of supervisor and children: one format, whole or absent, verified when read."""

import errno
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from planaria.blobstore import BlobStore as ChildBlobStore
from planaria.protocol.blobs import blob_path, blob_ref, check_blob_ref
from planaria.protocol.errors import DataDirectoryError, IntegrityError, ProtocolError
from planaria.protocol.limits import BLOB_BYTES_MAX
from planaria.supervisor.blobs import BlobStore

HEX = sha256(b"hello").hexdigest()
REF = {"ref": f"sha256/{HEX[:2]}/{HEX}", "sha256": f"sha256:{HEX}", "size": 5}

both = pytest.mark.parametrize("store_class", [BlobStore, ChildBlobStore])


def test_reference_names_path_hash_and_size() -> None:
    assert REF == blob_ref(b"hello")
    assert REF == check_blob_ref(dict(REF))


@pytest.mark.parametrize(
    "ref",
    [
        None,
        {},
        {**REF, "more": 1},
        {**REF, "ref": "../../etc/passwd"},
        {**REF, "sha256": "sha256:../../etc/passwd"},
        {**REF, "sha256": HEX},
        {**REF, "sha256": f"sha256:{HEX}\n"},
        {**REF, "sha256": f"sha256:{HEX.upper()}"},
        {**REF, "sha256": 7},
        {**REF, "size": -1},
        {**REF, "size": True},
        {**REF, "size": BLOB_BYTES_MAX + 1},
    ],
)
@both
def test_malformed_reference_is_refused_before_any_path_is_made(
    store_class: type[BlobStore], ref: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ProtocolError):
        store_class(tmp_path).read(ref)


@pytest.mark.parametrize("data", [b"", b"hello", os.urandom(300_000)])
@pytest.mark.parametrize("writer", [BlobStore, ChildBlobStore])
@pytest.mark.parametrize("reader", [BlobStore, ChildBlobStore])
def test_either_store_reads_what_the_other_wrote(
    writer: type[BlobStore], reader: type[BlobStore], data: bytes, tmp_path: Path
) -> None:
    ref = writer(tmp_path).write(data)

    assert blob_ref(data) == ref
    assert data == reader(tmp_path).read(ref)
    assert BlobStore(tmp_path).exists(ref)
    assert 0o600 == (tmp_path / ref["ref"]).stat().st_mode & 0o777


@both
def test_equal_bytes_are_stored_once(store_class: type[BlobStore], tmp_path: Path) -> None:
    store = store_class(tmp_path)
    ref = store.write(b"hello")
    inode = (tmp_path / ref["ref"]).stat().st_ino

    assert ref == store.write(b"hello")
    assert inode == (tmp_path / ref["ref"]).stat().st_ino
    assert 1 == sum(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("content", [b"hellp", b"hell", b"hello!", b""])
@both
def test_altered_blob_is_an_integrity_error_until_written_again(
    store_class: type[BlobStore], content: bytes, tmp_path: Path
) -> None:
    store = store_class(tmp_path)
    ref = store.write(b"hello")
    (tmp_path / ref["ref"]).write_bytes(content)

    with pytest.raises(IntegrityError, match=HEX):
        store.read(ref)
    store.write(b"hello")
    assert b"hello" == store.read(ref)


@both
def test_missing_blob_is_an_integrity_error(store_class: type[BlobStore], tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=HEX):
        store_class(tmp_path).read(REF)
    assert not BlobStore(tmp_path).exists(REF)


def test_link_or_other_size_is_no_blob(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    ref = store.write(b"hello")
    path = tmp_path / ref["ref"]
    path.write_bytes(b"hell")
    assert not store.exists(ref)
    path.unlink()
    (tmp_path / "other").write_bytes(b"hello")
    path.symlink_to(tmp_path / "other")

    assert not store.exists(ref)
    with pytest.raises(IntegrityError):
        store.read(ref)


def test_size_limit_is_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("planaria.protocol.blobs.BLOB_BYTES_MAX", 5)
    store = BlobStore(tmp_path)

    assert REF == store.write(b"hello")
    with pytest.raises(ProtocolError, match="6 bytes"):
        store.write(b"hello!")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_failing_disk_leaves_no_blob_and_no_litter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    BlobStore(tmp_path).write(b"other")
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "mkdir")}
    calls = fail_at = 0

    def failing(name: str):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(code, os.strerror(code))
            return real[name](*args, **kwargs)

        return call

    for name in real:
        monkeypatch.setattr(os, name, failing(name))
    for fail_at in range(1, 50):
        calls = 0
        store = BlobStore(tmp_path)
        try:
            ref = store.write(b"hello")
        except DataDirectoryError:
            assert calls == fail_at
            files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
            # The one name that may be there is whole.
            assert set(files) <= {HEX, sha256(b"other").hexdigest()}, f"operation {fail_at}"
        else:
            break

    assert fail_at >= 8
    calls, fail_at = 0, 0
    assert b"hello" == BlobStore(tmp_path).read(ref)


def test_write_that_takes_less_than_given_is_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    store = BlobStore(tmp_path)

    assert b"hello" == store.read(store.write(b"hello"))


CHILD = """
import os, signal, sys
from pathlib import Path
from planaria.supervisor.blobs import BlobStore

def trace(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

BlobStore(Path(sys.argv[1]), trace).write(b"hello")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("point", "unfinished"), [("blob_written", 1), ("blob_renamed", 0)])
def test_killed_writer_leaves_a_whole_blob_or_none(
    tmp_path: Path, point: str, unfinished: int
) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), point], timeout=30)
    store = BlobStore(tmp_path)

    assert -signal.SIGKILL == child.returncode
    assert (point == "blob_renamed") == store.exists(REF)
    assert unfinished == store.remove_unfinished()
    assert b"hello" == store.read(store.write(b"hello"))
    assert REF["ref"] == blob_path(REF["sha256"])


def test_disk_that_refuses_a_probe_is_told_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = BlobStore(tmp_path)
    store.check_writable()
    monkeypatch.setattr(os, "write", refuse_space)

    with pytest.raises(DataDirectoryError, match=os.strerror(errno.ENOSPC)):
        store.check_writable()
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def refuse_space(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
