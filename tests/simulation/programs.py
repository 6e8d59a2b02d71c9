"""Small programs for the simulation: each a document, its tools and its input."""

from typing import Any


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lwir/v1",
        "kind": "Workflow",
        "metadata": {"name": "sim"},
        "input": {"schema": {}},
        "output": more.pop("output", {}),
        "permissions": {"models": [], "tools": ["echo", "flaky", "grow", "mail", "check"]},
        "steps": list(steps),
        **more,
    }


def call(id: str, tool: str = "echo", args: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "uses": "tool.call", "with": {"tool": tool, "args": args or {}}, **more}


def sequence() -> dict[str, Any]:
    return document(
        call("a", args={"x": "{{ input.x }}"}),
        call("b", needs=["a"], args={"x": "{{ steps.a.output.x + 1 }}"}),
        call("c", needs=["b"], args={"x": "{{ steps.b.output.x * 2 }}"}),
    )


def diamond() -> dict[str, Any]:
    return document(
        call("a", args={"x": 1}),
        call("b", needs=["a"], args={"x": "{{ steps.a.output.x + 1 }}"}),
        call("c", needs=["a"], args={"x": "{{ steps.a.output.x + 2 }}"}),
        call("d", needs=["b", "c"], args={"x": "{{ [steps.b.output.x, steps.c.output.x] }}"}),
    )


def loop() -> dict[str, Any]:
    return document(
        call("grow", "grow", {"n": "{{ size(steps.grow.allVisits) }}"}, maxVisits=5),
        {
            "id": "route",
            "uses": "decision",
            "needs": ["grow"],
            "with": {
                "cases": [{"when": "{{ steps.grow.lastOutput.n < 3 }}", "to": "grow"}],
                "default": "end",
            },
        },
        call("after", needs=["grow"], args={"all": "{{ steps.grow.allVisits }}"}),
    )


def branches() -> dict[str, Any]:
    inner = [
        call("work", args={"item": "{{ item }}", "key": "{{ itemKey }}"}),
        call("twice", needs=["work"], args={"again": "{{ steps.work.output.item }}"}),
    ]
    return document(
        {
            "id": "each",
            "uses": "parallel",
            "with": {
                "items": "{{ input.items }}",
                "itemKey": "{{ item }}",
                "maxBranches": 10,
                "maxConcurrency": 2,
                "failureMode": "all_settled",
                "fanIn": {"order": "input"},
            },
            "steps": inner,
        },
        call("end_", needs=["each"], args={"all": "{{ steps.each.output }}"}),
    )


def skip() -> dict[str, Any]:
    return document(
        call("a", args={"ok": "{{ input.ok }}"}),
        {
            "id": "route",
            "uses": "decision",
            "needs": ["a"],
            "with": {"cases": [{"when": "{{ steps.a.output.ok }}", "to": "b"}], "default": "d"},
        },
        call("b"),
        call("c", needs=["b"], args={"from": "c"}),
        call("d", args={"from": "d"}),
        call(
            "e", needs=["c", "d"], args={"c": "{{ steps.c.output }}", "d": "{{ steps.d.output }}"}
        ),
    )


def retry() -> dict[str, Any]:
    policy = {"maxAttempts": 3, "backoff": "exponential", "delay": "100ms"}
    return document(call("a", "flaky", {"n": 1}, retry=policy), call("b", needs=["a"]))


def code_step() -> dict[str, Any]:
    return document(
        {
            "id": "code",
            "uses": "code.run",
            "with": {"source": "1", "tools": ["echo", "mail", "echo"]},
        },
        call("b", needs=["code"], args={"r": "{{ steps.code.output }}"}),
    )


def retried_group() -> dict[str, Any]:
    """A mail in each branch, then a step that fails, with a retry of the whole group."""
    return document(
        {
            "id": "each",
            "uses": "parallel",
            "retry": {"maxAttempts": 3, "delay": "10ms"},
            "with": {
                "items": [1],
                "itemKey": "{{ item }}",
                "maxBranches": 2,
                "maxConcurrency": 1,
                "failureMode": "fail_fast",
                "fanIn": {"order": "input"},
            },
            "steps": [
                call("mail", "mail", {"n": "{{ item }}"}),
                call("flaky", "flaky", {"n": 1}, needs=["mail"]),
            ],
        }
    )


def fan_out(
    *steps: dict[str, Any], items: Any = "{{ input.items }}", id: str = "each", **more: Any
) -> dict[str, Any]:
    """A `parallel` step; what of `more` belongs into its `with` goes there."""
    inside = ("itemKey", "maxBranches", "maxConcurrency", "failureMode", "fanIn")
    config = {name: more.pop(name) for name in inside if name in more}
    config = {"items": items, "itemKey": "{{ item }}", "maxBranches": 1_000, **config}
    config.setdefault("maxConcurrency", config["maxBranches"])
    config.setdefault("failureMode", "fail_fast")
    config.setdefault("fanIn", {"order": "input"})
    return {"id": id, "uses": "parallel", "with": config, "steps": list(steps), **more}


def decide(id: str, needs: list[str], default: str, *cases: tuple[str, str]) -> dict[str, Any]:
    listed = [{"when": f"{{{{ {when} }}}}", "to": to} for when, to in cases]
    config = {"cases": listed, "default": default}
    return {"id": id, "uses": "decision", "needs": needs, "with": config}
