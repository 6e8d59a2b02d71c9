"""A workflow that reviews the Python files of some folders, and ranks them.

Each file gets a branch of its own, in which a reviewer and a critic take turns until the critic
is content: worker -> review -> decision. planaria runs every turn as a process of its own.

    planaria run scripts/examples/code_review/review.py:review --input '{"folders": ["sdk"]}'

With REVIEW_MODEL=openai:gpt-4.1 (or any other name that pydantic-ai knows) a real model does it.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ledger import PATH_VARIABLE, noted
from measures import Measures, measure_file
from pydantic import BaseModel
from reviewers import make_models

from planaria import Workflow, current_call, tool
from planaria.steps import call, code, decision, generate, parallel

FILES_MAX = 500
BRANCHES_AT_ONCE = 6
SOURCE_CHARS_MAX = 60_000  # what a model is given of one file: about 15,000 tokens
VISITS_MAX = 4
SECTIONS_MAX = 12  # files of which the report tells the points
MODEL_VARIABLE = "REVIEW_MODEL"
PROVIDER_VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
)


class Request(BaseModel):
    """What is to be reviewed: folders, each with all Python files below it."""

    folders: list[str]


class File(BaseModel):
    """A file and the short name under which the report has it."""

    key: str
    path: str


class Point(BaseModel):
    """One thing that a review says about a file."""

    line: int
    severity: str
    text: str


class FileReview(BaseModel):
    """How a file's review ended, after how many visits of the reviewer."""

    key: str
    visits: int
    measures: Measures
    points: list[Point]


class RankedReview(FileReview):
    """A file's review with its place in the order of what to look at first."""

    score: int


class Ranking(BaseModel):
    """The reviews, the most pressing first, and the files that could not be reviewed."""

    ranked: list[RankedReview]
    failed: list[str]


def find_files(folders: list[str]) -> list[File]:
    """Returns the Python files below some folders, by name."""
    files = [
        File(key=f"{Path(folder).name}/{path.relative_to(folder).as_posix()}", path=str(path))
        for folder in folders
        for path in sorted(Path(folder).rglob("*.py"))
    ]
    if len(files) > FILES_MAX:
        raise ValueError(f"{len(files)} files, at most {FILES_MAX}: name smaller folders")
    return files


def note_call(name: str) -> AbstractContextManager[None]:
    """Returns the context in which a tool's work stands in the ledger."""
    current = current_call()
    return noted("tool", name, current.session_id, current.call_id)


@tool(effect="read")
def list_files(folders: list[str]) -> list[File]:
    """Lists the Python files below some folders, by name."""
    with note_call("list_files"):
        return find_files(folders)


@tool(effect="read")
def read_source(path: str) -> str:
    """Reads a Python file; of a long one, its beginning."""
    with note_call("read_source"):
        if not path.endswith(".py"):
            raise ValueError(f"{path!r} is no Python file")
        return Path(path).read_text(encoding="utf-8", errors="replace")[:SOURCE_CHARS_MAX]


@tool(effect="read")
def measure(path: str) -> Measures:
    """Measures a Python file by its syntax tree: sizes, branches, docstrings, swallowed errors."""
    with note_call("measure"):
        return measure_file(Path(path))


@tool(effect="read")
def conclude_review(file: File, points: list[Point], visits: int) -> FileReview:
    """Puts a file's final points beside its measures."""
    with note_call("conclude_review"):
        measures = measure_file(Path(file.path))
        return FileReview(key=file.key, visits=visits, measures=measures, points=points)


@tool(effect="read")
def render_report(ranking: Ranking) -> str:
    """Writes the report as Markdown."""
    with note_call("render_report"):
        return "\n".join(_render_lines(ranking)) + "\n"


def _render_lines(ranking: Ranking) -> list[str]:
    reviews = ranking.ranked
    lines = sum(review.measures.lines for review in reviews)
    points = sum(len(review.points) for review in reviews)
    report = [
        "# Code review",
        "",
        f"{len(reviews)} files, {lines} lines, {points} points. What to look at first:",
        "",
        "| # | file | score | lines | functions | branches | points | visits |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for place, review in enumerate(reviews, start=1):
        found = review.measures
        report.append(
            f"| {place} | {review.key} | {review.score} | {found.lines} | {found.functions} "
            f"| {found.branches} | {len(review.points)} | {review.visits} |"
        )
    for review in reviews[:SECTIONS_MAX]:
        report += ["", f"## {review.key}", ""]
        report += [f"- line {p.line} ({p.severity}): {p.text}" for p in review.points]
    if ranking.failed:
        report += ["", "## Not reviewed", "", *(f"- {text}" for text in ranking.failed)]
    return report


POINT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "line": {"type": "integer", "minimum": 1},
        "severity": {"enum": ["high", "medium", "low"]},
        "text": {"type": "string", "minLength": 1},
    },
    "required": ["line", "severity", "text"],
    "additionalProperties": False,
}
REVIEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "lines": {"type": "integer", "minimum": 0},
        "points": {"type": "array", "items": POINT_SCHEMA},
    },
    "required": ["lines", "points"],
    "additionalProperties": False,
}
VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"passed": {"type": "boolean"}, "feedback": {"type": "string"}},
    "required": ["passed", "feedback"],
    "additionalProperties": False,
}

REVIEW_PROMPT = (
    "Review the Python file whose path is in the input. First call read_source and measure with "
    "that path, both in the same turn. Then give its number of lines, and the points that a "
    "maintainer should know, the most important first. If there is feedback on an earlier "
    "review, keep its points and add what is missing."
)
VERDICT_PROMPT = (
    "Judge the review in the input. Pass it if its points are concrete and if there are enough of "
    "them for the number of lines: two for a small file, four for one of 1,200 lines or more. "
    "Otherwise say in the feedback what is missing."
)

# Runs in the sandbox: it sees `input`, the envelopes of the branches, and nothing else.
RANK_SOURCE = """
WEIGHTS = {"high": 25, "medium": 10, "low": 2}

def weigh(review):
    measures = review["measures"]
    points = sum([WEIGHTS.get(point["severity"], 2) for point in review["points"]])
    return points + measures["branches"] // 10 + measures["lines"] // 100

ranked = []
failed = []
for envelope in input:
    if envelope["status"] == "completed":
        review = envelope["output"]
        ranked.append({**review, "score": weigh(review)})
    else:
        failed.append(envelope["itemKey"] + ": " + envelope["error"]["message"])
ranked.sort(key=lambda review: (-review["score"], review["key"]))
result = {"ranked": ranked, "failed": failed}
"""


def make_branch() -> list[dict[str, Any]]:
    """Returns the steps of one file: review, verdict, and back unless it is good enough."""
    return [
        generate(
            "write",
            model="reviewer",
            prompt=REVIEW_PROMPT,
            tools=[read_source, measure],
            input={
                "path": "{{ item.path }}",
                "visit": "{{ size(steps.write.allVisits) }}",
                "feedback": "{{ steps.judge.lastOutput.feedback }}",
                "earlier": "{{ steps.write.lastOutput.points }}",
            },
            output={"mode": "object", "schema": REVIEW_SCHEMA},
            max_visits=VISITS_MAX,
        ),
        generate(
            "judge",
            needs=["write"],
            model="critic",
            prompt=VERDICT_PROMPT,
            input={"file": "{{ item.key }}", "review": "{{ steps.write.lastOutput }}"},
            output={"mode": "object", "schema": VERDICT_SCHEMA},
            max_visits=VISITS_MAX,
        ),
        decision(
            "gate",
            needs=["judge"],
            # A review that is still not good enough at its last visit is taken as it is.
            cases=[
                (
                    "{{ not steps.judge.lastOutput.passed "
                    f"and size(steps.write.allVisits) < {VISITS_MAX} }}}}",
                    "write",
                )
            ],
            default="conclude",
        ),
        call(
            "conclude",
            conclude_review,
            needs=["gate"],
            args={
                "file": "{{ item }}",
                "points": "{{ steps.write.lastOutput.points }}",
                "visits": "{{ size(steps.write.allVisits) }}",
            },
        ),
    ]


def make_workflow(model: str | None) -> Workflow:
    """Returns the workflow for a model's name, or for the local models."""
    return Workflow(
        id="examples.code_review",
        description="Reviews the Python files of some folders and ranks them.",
        input=Request,
        output=str,
        models=make_models(model),
        tools=[list_files, read_source, measure, conclude_review, render_report],
        env=[MODEL_VARIABLE, PATH_VARIABLE, *(n for n in PROVIDER_VARIABLES if n in os.environ)],
        steps=[
            call("files", list_files, args={"folders": "{{ input.folders }}"}),
            parallel(
                "review",
                needs=["files"],
                items="{{ steps.files.output }}",
                item_key="{{ item.key }}",
                max_branches=FILES_MAX,
                max_concurrency=BRANCHES_AT_ONCE,
                failure_mode="all_settled",
                output_step="conclude",
                steps=make_branch(),
            ),
            code("rank", needs=["review"], input="{{ steps.review.output }}", source=RANK_SOURCE),
            call(
                "report",
                render_report,
                needs=["rank"],
                args={"ranking": "{{ steps.rank.output }}"},
            ),
        ],
    )


review = make_workflow(os.environ.get(MODEL_VARIABLE) or None)
