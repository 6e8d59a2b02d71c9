"""What a planner is told of the workflow language; test_planner.py holds it to the validator."""

# A complete document: the guide shows it, and the tests validate it.
EXAMPLE = """\
{
  "apiVersion": "lwir/v1",
  "kind": "Workflow",
  "metadata": {"name": "triage", "description": "Answers every open ticket."},
  "permissions": {"models": ["fast"], "tools": ["list_tickets", "send_mail"]},
  "steps": [
    {"id": "open", "uses": "tool.call",
     "with": {"tool": "list_tickets", "args": {"queue": "{{ input.queue }}"}},
     "retry": {"maxAttempts": 3, "backoff": "exponential", "delay": "1s", "maxDelay": "1m"}},
    {"id": "each", "uses": "parallel", "needs": ["open"],
     "with": {"items": "{{ steps.open.output }}", "itemKey": "{{ item.id }}",
              "maxBranches": 200, "maxConcurrency": 8, "failureMode": "all_settled",
              "fanIn": {"order": "input"}},
     "steps": [
       {"id": "draft", "uses": "ai.generate", "maxVisits": 3,
        "with": {"model": "fast", "prompt": "Answer this ticket: {{ item.text }}"},
        "output": {"mode": "object", "schema": {"type": "object",
          "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
          "required": ["answer", "sure"]}}},
       {"id": "good", "uses": "decision", "needs": ["draft"],
        "with": {"cases": [{"when": "{{ steps.draft.lastOutput.sure }}", "to": "send"}],
                 "default": "draft"}},
       {"id": "send", "uses": "tool.call", "needs": ["good"],
        "with": {"tool": "send_mail",
                 "args": {"to": "{{ item.from }}",
                          "text": "{{ steps.draft.lastOutput.answer }}"}}}
     ]},
    {"id": "count", "uses": "code.run", "needs": ["each"],
     "input": {"branches": "{{ steps.each.output }}"},
     "with": {"source": "done = [b for b in input['branches'] if b['status'] == 'completed']\\n\
{'sent': len(done)}"}}
  ]
}"""

_LANGUAGE = """\
You write a workflow as one JSON document in the language LWIR. It is data, not code: a supervisor
runs its steps, each of which is retried, recorded and resumed by itself. You write it once; it then
serves every input that fits the input schema, so never build a particular input into it.

DOCUMENT
apiVersion "lwir/v1"; kind "Workflow"; metadata {name, description?}; permissions {models, tools,
workflows?}: lists of the names that the steps use; steps: a list that isn't empty; output.step?:
the id of the step whose output is the run's. Leave input and output schemas out: they are given.
Every field is acted on, so an unknown one is an error.

STEP
id      unique in its list; without . [ ] and not "end". Letters, digits and _ make the best ids.
uses    one of the kinds below.
needs   ids of steps in the same list that come first. Steps without a path of needs between them
        run at the same time.
with    the fields of the kind.
input   any value with expressions: what the step works on. Without it: the run's input, or in a
        branch its item. (ai.generate, tool.call, code.run)
output  {mode: "text" | "object" | "array" | "choice" | "json", schema?, values?}. choice needs
        values, a list of texts. Not on a decision.
maxVisits  1 to 100: how often a loop may run the step; at least 2 on each of a loop but decisions.
retry   {maxAttempts 1..10, backoff? "fixed" | "exponential", delay?, maxDelay?}. Durations are
        like "500ms", "30s", "5m", "2h", "1d". Not on a decision, approval or wait.
timeout a duration, for one attempt. Not on a decision, approval or wait.
sensitive  true keeps the step's values out of the log.

KINDS (fields of `with`; ? marks those that may be left out)
ai.generate    model (a slot), prompt, tools? (names), instructions?, maxTurns? . An agent: it sees
               the prompt and after it the step's input, may call the tools, and gives the output.
               onFailure? {repair: {maxAttempts}}: how often it may correct an output that doesn't
               fit its schema.
tool.call      tool, args (an object). Calls one tool; no model is asked.
code.run       source, tools? (names). Python in a sandbox: it sees `input` and its tools as
               functions with named arguments, may import math, re, json, datetime, and has no
               files, network or clock. Its result is the value of the last expression, or of a
               name `result`. onFailure? {fixer: {model, maxAttempts, instructions?}}: an agent
               that corrects the source when it fails.
parallel       items (an expression that gives a list), itemKey (an expression that gives each item
               its own text), maxBranches, maxConcurrency, failureMode "fail_fast" |
               "all_settled", fanIn {order "input" | "itemKey", outputStep?}; beside `with` it has
               `steps`, which run once for each item. Its output is a list of {itemKey, status
               "completed", output} and, with all_settled, {itemKey, status "failed", error}.
decision       cases [{when, to}], default. The first case whose expression is true chooses; `to`
               and `default` are ids of the same list, or "end". A target that the decision needs,
               directly or not, is run again, and what lies between: a loop. Any other target
               runs after the decision and only if it is chosen; the others are skipped, and so
               is what needs only skipped steps.
workflow.call  workflow (one of those listed as callable), input, wait? . Runs another workflow; its
               output is that workflow's.
approval       prompt, data?, expiresIn? (a duration), onTimeout? "reject" | "fail". Asks a person,
               who sees prompt and data. Its output is {decision "approved" | "rejected", source
               "person" | "timer", by?, note?, decidedAt}; an expiry rejects or fails. Let a
               decision read it: a rejection is no failure.
wait           one of: signal (a name), with expiresIn?; until (a time like
               "2030-01-31T09:00:00Z"); for (a duration). A signal's data is its output, else null;
               a signal that doesn't come in time fails the step.

EXPRESSIONS
{{ … }} in input and in prompt, instructions, args, items, itemKey, when, data, until, for, and the
input of a workflow.call; never in source, ids or schemas. A text that is one expression gives the
value with its type; inside other text it is written out; {{{{ is a literal {{. Literals, .name,
[index],
== != < <= > >=, and, or, not, + - * / %, and the functions coalesce sha256 size lower upper default
contains keys. No other calls.
Roots: input (of the run), item and itemKey (in a branch), steps.<id>.output, workflow, cycle.
A step with maxVisits over 1 has steps.<id>.lastOutput and .allVisits in place of .output.
A step may be read if it comes before by needs, or lies on the same loop. An id with a hyphen is
written steps["my-id"].output. What isn't there is null, and so is a member of null.

RESULT
The output of a list of steps is that of its last step, in the order of the document, which no
other step that ran needs; output.step, and in a branch fanIn.outputStep, names another. It has to
fit the output schema.

SCHEMAS
type properties required additionalProperties propertyNames items anyOf oneOf const enum minItems
maxItems minLength maxLength minimum maximum title description examples. No other keyword.

TOOLS have an effect class: read changes nothing; idempotent may be repeated; managed can be looked
up afterwards; once must not happen twice, so put no avoidable risk around it.
Prefer tool.call and code.run where no judgement is needed: they cost nothing and always do the
same. Give every ai.generate step that others read an output schema.

EXAMPLE
"""

GUIDE = _LANGUAGE + EXAMPLE
