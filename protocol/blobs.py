"""References to content-addressed payloads: how one is made, its path, and its check."""

import hashlib
import re
from typing import Any

from .errors import IntegrityError, ProtocolError
from .limits import BLOB_BYTES_MAX

_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")


def blob_ref(data: bytes) -> dict[str, Any]:
    """Returns the reference {ref, sha256, size} under which these bytes are stored.

    Raises:
        ProtocolError: larger than a blob may be.
    """
    if len(data) > BLOB_BYTES_MAX:
        raise ProtocolError(
            message=f"a value of {len(data)} bytes; at most {BLOB_BYTES_MAX} can be stored. "
            "Write it to a file and return its path"
        )
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return {"ref": blob_path(digest), "sha256": digest, "size": len(data)}


def blob_path(sha256: object) -> str:
    """Returns the path of a blob below the store's directory, for `sha256:<hex>`.

    Raises:
        ProtocolError: no such hash; no path is ever made of anything else.
    """
    match = _SHA256.fullmatch(sha256) if isinstance(sha256, str) else None
    if match is None:
        raise ProtocolError(message=f"{str(sha256)[:100]!r} is no hash of the form 'sha256:<hex>'")
    return f"sha256/{match[1][:2]}/{match[1]}"


def check_blob_ref(ref: object) -> dict[str, Any]:
    """Returns `ref` if it has the form of a reference; its sender may be hostile.

    Raises:
        ProtocolError: wrong fields, a size beyond the limit, or a path that isn't its hash's.
    """
    if not isinstance(ref, dict) or ref.keys() != {"ref", "sha256", "size"}:
        raise ProtocolError(message="a blob reference has exactly the fields ref, sha256 and size")
    size = ref["size"]
    if type(size) is not int or not 0 <= size <= BLOB_BYTES_MAX:
        raise ProtocolError(message=f"a blob reference's size is 0..{BLOB_BYTES_MAX}")
    if ref["ref"] != blob_path(ref["sha256"]):
        raise ProtocolError(message="a blob reference's ref isn't the path of its sha256")
    return ref


def verify_blob(data: bytes, ref: dict[str, Any]) -> bytes:
    """Returns `data` if it is what `ref` names.

    Raises:
        IntegrityError: another length or another hash.
    """
    if len(data) != ref["size"] or blob_ref(data)["sha256"] != ref["sha256"]:
        raise IntegrityError(
            message=f"blob {ref['ref']!r} isn't what was stored: {len(data)} bytes that don't "
            f"match {ref['sha256']} of {ref['size']} bytes. Restore it from a backup"
        )
    return data
