"""JSON paths as errors and findings show them: `$.calls[2].id`, `$["a key"]`."""

import json
import re

KEY_CHARS_MAX = 60  # 64 levels of such keys stay within the 8,192 characters of an error text

_BARE_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*", re.ASCII)


def extend_path(path: str, step: str | int) -> str:
    """Returns the path of the member or item `step` of the value at `path`.

    The result is always printable ASCII, whatever the key holds: a lone surrogate in it can't
    make the error itself unsendable.
    """
    if isinstance(step, int):
        return f"{path}[{step}]"
    if len(step) > KEY_CHARS_MAX:
        step = step[:KEY_CHARS_MAX] + "..."
    if _BARE_KEY.fullmatch(step):
        return f"{path}.{step}"
    return f"{path}[{json.dumps(step)}]"
