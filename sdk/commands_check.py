"""The command that checks a workflow without running it."""

from planaria.protocol.errors import EXIT_DONE, EXIT_USAGE, WorkflowInvalidError

from .command_line import AsJson, DataDir, Module, Target, stdout_kept, write_json


def check(
    target: Target,
    module: Module = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Check a workflow or orchestrator, and whether its models can be called from here."""
    del data_dir  # every command takes it; this one needs none
    from .definition import load_target
    from .providers import find_model_problems

    name, version = target, None
    try:
        with stdout_kept():
            workflow = load_target(target, str(module) if module else None)
    except WorkflowInvalidError as error:
        name, findings = str(error.fields.get("name") or target), list(error.fields["findings"])
    else:
        name, version = workflow.id, workflow.version_id
        findings = find_model_problems(workflow)
    if as_json:
        write_json(
            {"workflow": name, "versionId": version, "isValid": not findings, "findings": findings}
        )
    else:
        for found in findings:
            print(f"{found['code']} at {found['path']}: {found['message']}")
        shown = version or "planned anew in each run"
        print(f"{name}: {len(findings)} finding(s)" if findings else f"{name}: valid, {shown}")
    return EXIT_USAGE if findings else EXIT_DONE
