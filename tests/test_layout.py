"""The rules of the layout that no other tool holds: who may import whom, and what stays pure."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The folders whose modules a folder may import, its own included.
MAY_IMPORT = {
    "protocol": {"protocol"},
    "sdk": {"sdk", "protocol"},
    "supervisor": {"supervisor", "protocol"},
    "workers": {"workers", "protocol", "sdk"},
}
TOP_LEVEL = {".ci", "docs", "protocol", "scripts", "sdk", "supervisor", "tests", "workers"}
TEST_FOLDERS = {*MAY_IMPORT, "simulation", "processes"}

KERNEL = set(
    "state run_state system_state plan fold fold_sessions scope_flow advance outputs context "
    "decide drafts owed_sessions timers fleet kernel kernel_messages restart illegal "
    "fold_groups fold_sub_runs fold_openings fold_waits owed_waits decide_waits resolving "
    "owed_sub_runs planning forking inheritance budgets spending decide_reports decide_openings "
    "decision outer_loop drive_loop drift".split()
)
# What reads a clock, draws a number, or touches a file, a socket, a process or a thread.
IMPURE_MODULES = set(
    "apsw asyncio concurrent ctypes fcntl glob io logging mmap multiprocess multiprocessing os "
    "pathlib psutil random resource secrets select selectors shutil signal socket sqlite3 "
    "subprocess tempfile threading time uuid zmq".split()
)
IMPURE_CALLS = {"open", "input", "print", "now", "utcnow", "today"}

# Libraries that one module of a folder wraps. apsw: the event log is one edge in five files, and
# what verifies it reads it by itself.
WRAPPED = {
    ("apsw", "supervisor"): set(
        "event_log event_reader log_copy log_file log_pruning verify".split()
    ),
}
WRAPPED_LIBRARIES = {"apsw", "genai_prices", "multiprocess", "psutil", "zmq"}

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
# What is longer all the same; it leaves these lists when it is split.
LONG_FILES = {
    "tests/simulation/world.py",
    "tests/supervisor/test_children.py",
    "tests/workers/test_agent_conformance.py",
    "tests/workers/test_agent_loop.py",
    "tests/workers/test_sandbox.py",
}
LONG_FUNCTIONS = {"tests/simulation/world.py:run_session"}

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


ALL_SOURCES = [path for folder in (*MAY_IMPORT, "tests") for path in sources(folder)]
PURE_SOURCES = [
    *sources("protocol"),
    *(path for path in sources("supervisor") if path.stem in KERNEL),
]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def show(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Yields (line, level, dotted name) of every import, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            # `from planaria import protocol` and `from . import fold` name a module last.
            for alias in node.names:
                base = node.module or ""
                named = f"{base}.{alias.name}" if base in ("", "planaria") else base
                yield node.lineno, node.level, named.lstrip(".")


def folder_of(name: str) -> str | None:
    """Returns the folder that holds the module of an import name; None for a foreign one."""
    parts = name.split(".")
    if parts[0] != "planaria":
        return None
    named = parts[1] if len(parts) > 1 else ""
    return named if named in MAY_IMPORT and named != "sdk" else "sdk"


def tracked_files() -> list[Path]:
    """Returns what a clone holds: what git knows, and what it doesn't ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for path in map(ROOT.joinpath, listed.stdout.splitlines()) if path.is_file()]


def test_every_top_level_folder_exists() -> None:
    missing = sorted(name for name in TOP_LEVEL if not (ROOT / name).is_dir())

    assert [] == missing


def test_no_top_level_folder_shadows_the_installed_package() -> None:
    assert not (ROOT / "planaria").exists()


def test_tests_mirror_the_folders() -> None:
    folders = {
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }

    assert set() == folders - TEST_FOLDERS


def test_test_files_have_unique_names_and_no_package() -> None:
    paths = sources("tests")
    stems = [path.stem for path in paths]
    doubled = sorted(show(path) for path in paths if stems.count(path.stem) > 1)

    assert [] == doubled
    assert "__init__" not in stems


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_one_way(folder: str) -> None:
    wrong = [
        f"{show(path)}:{line}: {name}"
        for path in sources(folder)
        for line, level, name in imports(parse(path))
        if level == 0 and (target := folder_of(name)) and target not in MAY_IMPORT[folder]
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_its_own_modules_by_a_dot(folder: str) -> None:
    # One file under two names is two classes for mypy and pyright.
    wrong = [
        f"{show(path)}:{line}: {name}"
        for path in sources(folder)
        for line, level, name in imports(parse(path))
        if level > 1 or (level == 0 and folder_of(name) == folder)
    ]

    assert not wrong, "\n".join(wrong)


def test_pure_modules_import_nothing_that_acts() -> None:
    wrong = [
        f"{show(path)}:{line}: {name}"
        for path in PURE_SOURCES
        for line, level, name in imports(parse(path))
        if level == 0 and name.split(".")[0] in IMPURE_MODULES
    ]

    assert not wrong, "\n".join(wrong)


def test_pure_modules_call_nothing_that_acts() -> None:
    wrong = [
        f"{show(path)}:{node.lineno}: {called}()"
        for path in PURE_SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and (called := called_name(node)) in IMPURE_CALLS
    ]

    assert not wrong, "\n".join(wrong)


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name):
            return name
        case _:
            return ""


def test_kernel_modules_import_only_kernel_modules() -> None:
    # Purity is of the whole import: an edge behind a pure module would come along.
    wrong = [
        f"{show(path)}:{line}: {name}"
        for path in sources("supervisor")
        if path.stem in KERNEL
        for line, level, name in imports(parse(path))
        if level == 1 and name.split(".")[0] not in KERNEL
    ]

    assert not wrong, "\n".join(wrong)


def test_a_wrapped_library_is_imported_by_one_module_per_folder() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for folder in MAY_IMPORT:
        for path in sources(folder):
            for _, level, name in imports(parse(path)):
                library = name.split(".")[0]
                if level == 0 and library in WRAPPED_LIBRARIES:
                    found.setdefault((library, folder), set()).add(path.stem)
    wrong = {
        key: sorted(modules)
        for key, modules in found.items()
        if len(modules) > 1 and modules != WRAPPED.get(key)
    }

    assert {} == wrong


def test_no_file_is_longer_than_it_may_be() -> None:
    long = {
        show(path) for path in ALL_SOURCES if len(path.read_text().splitlines()) > FILE_LINES_MAX
    }

    assert not long - LONG_FILES, "\n".join(sorted(long - LONG_FILES))
    assert set() == LONG_FILES - long, "short again: take it off the list"


def test_no_function_is_longer_than_it_may_be() -> None:
    long = {
        f"{show(path)}:{node.name}"
        for path in ALL_SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    }

    assert not long - LONG_FUNCTIONS, "\n".join(sorted(long - LONG_FUNCTIONS))
    assert set() == LONG_FUNCTIONS - long, "short again: take it off the list"


def test_modules_say_what_they_hold() -> None:
    unsaid = [
        show(path)
        for folder in MAY_IMPORT
        for path in sources(folder)
        if not ast.get_docstring(parse(path))
    ]
    vague = [show(path) for path in ALL_SOURCES if VAGUE_NAMES & set(path.stem.split("_"))]

    assert [] == unsaid
    assert [] == vague


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    # A folder of a person or of a container; written in two parts, so as not to find itself.
    machine_path = re.compile(r"(?<![\w.:/-])/(?:root|work|workspace|Users)" + r"/\w")
    known = [text.encode() for text in (f"{ROOT}/", f"{Path.home()}/") if len(text) > 3]
    wrong = [
        f"{show(path)}:{number}"
        for path in tracked_files()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if machine_path.search(line.decode(errors="replace"))
        or any(prefix in line for prefix in known)
    ]

    assert not wrong, "\n".join(wrong)
