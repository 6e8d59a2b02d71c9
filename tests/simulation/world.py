"""The whole system in one process: log, network, clock and children in memory.

The kernel is the real one. A child is a small re-implementation of the session protocol that
performs its calls one message at a time, so that a crash can be put between any two of them. A
`World` can be cut at every append and every action, and goes on from what its log holds.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from planaria.protocol.blobs import blob_ref
from planaria.protocol.codec import canonical_bytes, hash_bytes, hash_jcs, hash_value, unpack
from planaria.protocol.effects import SUB_RUN_TOOLS, make_idempotency_key
from planaria.protocol.errors import ALWAYS_FAIL_RUN
from planaria.protocol.events import Event, decode_event, encode_event
from planaria.protocol.ids import call_id, sub_run_id
from planaria.protocol.messages import Committed, Deliver, HistoryPage, Refused, Settled, Stop
from planaria.protocol.outer_loops import dump_manifest, parse_manifest
from planaria.protocol.payloads import Ref, load_value, read_field
from planaria.protocol.templates import parse_template
from planaria.supervisor.fold import fold
from planaria.supervisor.kernel import Kernel
from planaria.supervisor.kernel_messages import (
    AdmitRun,
    Answer,
    CancelRun,
    DriveLoop,
    ErrandEnded,
    Feed,
    HistoryAsked,
    Kill,
    Launch,
    LaunchFailed,
    ProcessEnded,
    ProcessReady,
    ProcessSeen,
    Send,
    SendHistory,
    SessionReported,
    StopLoop,
    TellLoop,
    Tick,
    WriteManifest,
)
from planaria.supervisor.outer_loop import describe_loop, load_loop
from planaria.supervisor.plan import Plan, make_plan
from planaria.supervisor.run_state import Now, RunState
from planaria.supervisor.system_state import SystemState
from planaria.supervisor.timers import next_due

STEPS_MAX = 200_000


class Crash(Exception):
    """The supervisor of the world is cut here."""


class MemoryLibrary:
    """Blobs and plans in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self._unwritten: dict[str, bytes] = {}  # made in this turn; a crash loses them
        self._plans: dict[str, Plan] = {}
        self.find_run: Callable[[str], RunState | None] = lambda run_id: None

    def write(self, data: bytes) -> dict[str, Any]:
        ref = blob_ref(data)
        self.blobs[ref["sha256"]] = data
        self._unwritten.pop(ref["sha256"], None)
        return ref

    def keep(self, data: bytes) -> None:
        self._unwritten[blob_ref(data)["sha256"]] = data

    def read(self, ref: dict[str, Any]) -> bytes:
        digest = ref["sha256"]
        return self._unwritten[digest] if digest in self._unwritten else self.blobs[digest]

    def lose_unwritten(self) -> None:
        self._unwritten.clear()

    def plan(self, version_id: str, lock_ref: dict[str, Any]) -> Plan:
        if version_id not in self._plans:
            lock = unpack(self.read(lock_ref))
            self._plans[version_id] = make_plan(version_id, lock)
        return self._plans[version_id]

    def value(self, value: Any) -> Any:
        return load_value(value, self.read)

    def price(self, model: str, provider: str | None, inputs: int, outputs: int) -> float | None:
        return None if model == "unpriced" else (inputs + 2 * outputs) / 1000

    def cost(self, usage: dict[str, dict[str, int]]) -> float | None:
        total = 0.0
        for model, counts in usage.items():
            cost = self.price(model, None, counts["input_tokens"], counts["output_tokens"])
            if cost is None:
                return None
            total += cost
        return total

    def run(self, run_id: str) -> RunState | None:
        return self.find_run(run_id)


@dataclass
class Ledger:
    """Outside the system: every real execution of a tool or model, by key and call."""

    executions: list[tuple[str, str, str, Any]] = field(default_factory=list)

    def note(self, kind: str, call: str, key: str, args: Any) -> None:
        self.executions.append((kind, call, key, canonical_bytes(args)))

    def count(self) -> Counter[str]:
        return Counter(call for _, call, _, _ in self.executions)


Tool = Callable[[Any, "Ledger"], Any]


@dataclass
class Child:
    """A child process: its session's script is a generator of the messages it sends."""

    process_id: str
    inbox: deque[Any] = field(default_factory=deque)
    script: Any = None
    session: dict[str, Any] = field(default_factory=dict)
    reported: int = 0
    upto: int = 0
    history: list[Event] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    history_complete: bool = False
    sent: list[Any] = field(default_factory=list)
    settled: dict[str, Any] = field(default_factory=dict)  # outcomes that the supervisor told
    is_stopping: bool = False


class World:
    """One data directory's life over any number of supervisors."""

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]],
        *,
        effects: dict[str, str] | None = None,
        seed: int | None = None,
        children_max: int = 4,
        spares: int = 0,
    ) -> None:
        self.tools = tools
        self.effects = effects or {}
        self.random = random.Random(seed) if seed is not None else None
        self.library = MemoryLibrary()
        self.library.find_run = lambda run_id: self.fold_log().get(run_id)
        self.log: list[bytes] = []
        self.ledger = Ledger()
        self.at = 1_700_000_000_000_000
        self.mono = 0
        self.epoch = 0
        self.children_max = children_max
        self.spares = spares
        self.points = 0
        self.crash_at: int | None = None
        self.kill_child_at: int | None = None
        self.child_points = 0
        self.child_kills = 0
        self.answers: list[Answer] = []
        self.lossy = False
        # (key) -> ("succeeded", result), ("never_happened", None) or ("unknown", None)
        self.reattach: Callable[[str], tuple[str, Any]] = lambda key: ("unknown", None)
        self.reserve: dict[str, Any] | None = None  # of every model call, for budgets
        self.is_doomed: Callable[[Child], bool] | None = None  # asked before a child does anything
        self.hold: Callable[[str], bool] | None = None
        # (step path, attempt, {"args"|"prompt": …}) -> result, in place of the tools and models.
        self.answer: Callable[[str, int, Any], Any] | None = None
        # What a planner's, orchestrator's or fixer's model says: (session, turn, results so far)
        # -> {"calls": [[tool, args], …]} or {"output": …, "metadata"?: …} or {"error": …}.
        self.model: Callable[[dict[str, Any], int, list[Any]], dict[str, Any]] | None = None
        self.supervisor_crashes = 0
        self.manifests: dict[str, bytes] = {}  # files of outer loops
        self.notes: list[tuple[str, dict[str, Any]]] = []  # events of the system's own run
        self.supervise: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.supervised: list[Any] = []  # every state that it was asked about
        self.told_loops: list[dict[str, Any]] = []
        self._start()

    # -- the supervisor ------------------------------------------------------------------

    def _start(self) -> None:
        self.epoch += 1
        self.library.lose_unwritten()
        self.children: dict[str, Child] = {}
        self.inbox: deque[Any] = deque()
        system = SystemState(
            epoch=self.epoch, boot_id="boot", children_max=self.children_max, spares=self.spares
        )
        self.kernel = Kernel(system, self.library)
        folded = self.fold_log()
        for run in folded.values():
            if not run.is_ended:
                self.kernel.load(run)
        for loop_id, data in self.manifests.items():
            loop = load_loop(parse_manifest(loop_id, data), self.library)
            self.kernel.system.loops[loop_id] = loop
            self.manifests[loop_id] = dump_manifest(loop.manifest())
        for run_id in list(self.kernel.system.runs):
            self._take(self.kernel.recover(run_id, self.now()))
        self.inbox.extend(DriveLoop(loop_id) for loop_id in self.manifests)

    def fold_log(self) -> dict[str, RunState]:
        runs: dict[str, RunState] = {}
        for body in self.log:
            event = decode_event(body)
            run = runs.setdefault(event.run_id, RunState(event.run_id))
            fold(run, event, self.library)
        return runs

    def now(self) -> Now:
        return Now(self.at, self.mono)

    def _point(self) -> None:
        self.points += 1
        if self.crash_at is not None and self.points == self.crash_at:
            raise Crash

    def _take(self, turn: Any) -> None:
        self._point()
        for blob in turn.blobs:
            self.library.write(blob)
        for loop_id, data in turn.files:
            self.manifests[loop_id] = data
            self._point()
        self.notes.extend(turn.notes)
        if turn.events:
            self.log.extend(encode_event(event) for event in turn.events)
            self._point()
        for action in turn.actions:
            self._act(action)
            self._point()

    def _act(self, action: Any) -> None:
        match action:
            case Launch():
                self.children[action.process_id] = Child(action.process_id)
                self.inbox.append(ProcessReady(action.process_id, 1000 + len(self.log), 1))
            case Kill():
                if self.children.pop(action.process_id, None) is not None:
                    self.inbox.append(ProcessEnded(action.process_id, None, 9))
            case Send():
                child = self.children.get(action.process_id)
                if child is not None:
                    child.inbox.append(action.message)
            case SendHistory():
                bodies = [
                    body
                    for body in self.log
                    if (e := decode_event(body)).session_id == action.session_id
                    and action.after < e.sequence <= action.upto
                ]
                child = self.children.get(action.process_id)
                if child is not None:
                    child.inbox.append(HistoryPage(action.session_id, bodies, action.upto, False))
            case Answer():
                self.answers.append(action)
            case WriteManifest():
                loop = self.kernel.system.loops[action.loop_id]
                self.manifests[action.loop_id] = dump_manifest(loop.manifest())
            case TellLoop() | StopLoop():
                loop = self.kernel.system.loops[action.loop_id]
                self.told_loops.append(describe_loop(loop))
            case Feed():
                self.inbox.append(action.message)

    def crash(self) -> None:
        """SIGKILL of the supervisor: the children go with it, and a new one starts."""
        self.supervisor_crashes += 1
        self._start()

    def handle(self, message: Any) -> None:
        self._take(self.kernel.handle(message, self.now()))

    # -- children ------------------------------------------------------------------------

    def kill_child(self, process_id: str) -> None:
        if self.children.pop(process_id, None) is not None:
            self.child_kills += 1
            self.inbox.append(ProcessEnded(process_id, None, 9))

    def _child_point(self, child: Child) -> bool:
        self.child_points += 1
        if self.is_doomed is not None and self.is_doomed(child):
            self.kill_child(child.process_id)
            return True
        if self.kill_child_at is not None and self.child_points == self.kill_child_at:
            self.kill_child(child.process_id)
            return True
        return False

    def step_child(self, child: Child) -> bool:
        """Lets a child do one thing; says whether it did."""
        if child.inbox:
            message = child.inbox.popleft()
            match message:
                case Deliver() if "errandId" in message.session:
                    child.script = run_errand(self, child, message.session)
                case Deliver():
                    child.session = message.session
                    child.reported = child.session["reported"]
                    child.upto = child.reported
                    child.history, child.bodies, child.sent = [], [], []
                    child.history_complete = False
                    child.script = run_session(self, child)
                case Committed():
                    child.upto = max(child.upto, message.upto)
                case HistoryPage():
                    child.bodies = message.bodies
                    child.history = [decode_event(b) for b in message.bodies]
                    child.history_complete = True
                case Settled():
                    child.settled[message.payload["callId"]] = message.payload
                case Stop():
                    if message.reason in ("done", "shutdown"):
                        self.children.pop(child.process_id, None)
                        self.inbox.append(ProcessEnded(child.process_id, 0, None))
                    else:
                        child.is_stopping = True
                case Refused():
                    self.children.pop(child.process_id, None)
                    self.inbox.append(ProcessEnded(child.process_id, 3, None))
            return True
        if child.script is None:
            return False
        if self._child_point(child):
            return True
        try:
            sent = next(child.script)
        except StopIteration:
            child.script = None
            return True
        if sent == "wait":
            return False
        if sent is not None:
            self._send(sent)
        return True

    def _send(self, message: Any) -> None:
        if self.lossy and self.random is not None:
            draw = self.random.random()
            if draw < 0.15:
                return
            if draw < 0.3:
                self.inbox.append(message)
        self.inbox.append(message)

    # -- running -------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Runs until everything is still, moving the clock to what is due next."""
        for _ in range(STEPS_MAX):
            try:
                if until is not None and until():
                    return
                if not self._step():
                    return
            except Crash:
                self.crash_at = None
                self._restart_after_crash()
        raise AssertionError("the world doesn't come to rest")

    def step(self, count: int) -> bool:
        """Takes at most so many steps; says whether there may be more."""
        return all(self._step() for _ in range(count))

    def _restart_after_crash(self) -> None:
        while True:
            try:
                self.crash()
                return
            except Crash:
                continue

    def _step(self) -> bool:
        choices: list[Any] = []
        if self.inbox:
            choices.append(None)
        choices.extend(self.children.values())
        if self.random is not None:
            self.random.shuffle(choices)
        for choice in choices:
            if choice is None:
                self.handle(self.inbox.popleft())
                return True
            if self.step_child(choice):
                return True
        if self.lossy:
            for child in list(self.children.values()):
                if child.script is not None and self._resend(child):
                    return True
        return self._move_clock()

    def _resend(self, child: Child) -> bool:
        spec = child.session
        if spec["hasHistory"] and not child.history_complete:
            self._send(ask_history(child))
            return True
        if child.upto >= child.reported:
            return False
        missing = child.sent[child.upto - spec["reported"] :]
        number = (spec["sessionId"], spec["incarnation"], child.upto)
        self._send(SessionReported(child.process_id, *number, missing))
        return True

    def _move_clock(self) -> bool:
        for process_id in list(self.children):
            self.kernel.handle(ProcessSeen(process_id), self.now())
        wait = next_due(self.kernel.system, self.now())
        open_runs = [r for r in self.kernel.system.runs.values() if not r.is_ended]
        if wait is None or not open_runs:
            return False
        system = self.kernel.system
        is_stopping = any(p.kill_at is not None for p in system.processes.values())
        if wait > 9_000_000 and not system.timers and not is_stopping:
            return False
        self.at += wait
        self.mono += wait
        self.handle(Tick())
        return True

    # -- requests ------------------------------------------------------------------------

    def admit(
        self, document: dict[str, Any], value: Any, run_id: str = "run_1", **options: Any
    ) -> None:
        lock = {
            "lwir": document,
            "tools": {n: {"effect": self.effects.get(n, "read")} for n in self.tools},
            "models": {},
        }
        self.admit_lock(lock, value, run_id, **options)

    def admit_lock(
        self, lock: dict[str, Any], value: Any, run_id: str = "run_1", **options: Any
    ) -> None:
        ref = self.library.write(canonical_bytes(lock))
        message = AdmitRun(
            client=None,
            run_id=run_id,
            workflow_id="sim",
            definition_hash=hash_value("sim"),
            version_id="wv_" + hash_jcs(lock)[7:39],
            lock=lock,
            lock_ref=ref,
            input={"input": value},
            input_hash=hash_value(value),
            source={"kind": "sim"},
            options=options,
        )
        self.request(message)

    def request(self, message: Any) -> None:
        """Asks as a client would: again after every crash until there is an answer."""
        before = len(self.answers)
        while len(self.answers) == before:
            try:
                self.handle(message)
            except Crash:
                self.crash_at = None
                self._restart_after_crash()

    def cancel(self, run_id: str = "run_1") -> None:
        self.request(CancelRun(None, run_id, "req_1"))

    def state(self, run_id: str = "run_1") -> RunState:
        return self.fold_log()[run_id]

    def events(self, run_id: str = "run_1") -> list[Event]:
        return [e for e in map(decode_event, self.log) if e.run_id == run_id]


def ask_history(child: Child) -> HistoryAsked:
    spec = child.session
    number = (spec["sessionId"], spec["incarnation"], spec["firstSequence"] - 1)
    return HistoryAsked(child.process_id, *number)


def run_errand(world: World, child: Child, body: dict[str, Any]) -> Any:
    """Asks the user's `supervise`."""
    yield None
    context = body["context"]
    cycles = [{**c, "output": read_wrapped(world, c["output"])} for c in context["cycles"]]
    state = {"goal": context["goal"], "cycles": cycles}
    world.supervised.append(state)
    yield None
    assert world.supervise is not None
    try:
        result, error = world.supervise(state), None
    except RuntimeError as raised:
        result, error = None, {"name": "RuntimeError", "message": str(raised)}
    yield ErrandEnded(child.process_id, body["errandId"], result, error)


def run_session(world: World, child: Child) -> Any:
    """Carries one session: yields messages to send, or "wait" while it needs an answer."""
    spec = child.session

    def append(*events: list[Any]) -> SessionReported:
        after = child.reported
        child.sent.extend(events)
        child.reported += len(events)
        return SessionReported(
            child.process_id, spec["sessionId"], spec["incarnation"], after, list(events)
        )

    def committed() -> Any:
        while child.upto < child.reported:
            yield "wait"

    if spec["hasHistory"]:
        child.history_complete = False
        yield ask_history(child)
        while not child.history_complete:
            yield "wait"
        resumed = {
            "incarnation": spec["incarnation"],
            "manifestHash": spec["manifestHash"],
            "replayedEvents": len(child.bodies),
            "digest": hash_bytes(b"".join(child.bodies)),
        }
        yield append(["harness.session.resumed", resumed])
        yield from committed()
    started: dict[str, Any] = {}
    outcomes: dict[str, Any] = {}
    cleared: set[str] = set()  # a person has said that they never happened
    for event in child.history:
        if event.type == "harness.tool_call.started":
            started[event.payload["callId"]] = event.payload
        elif event.type in ("harness.tool_call.succeeded", "harness.tool_call.failed"):
            outcomes[event.payload["callId"]] = event
        elif event.type == "harness.model.called":
            started[event.payload["callId"]] = event.payload
        elif event.type == "harness.model.responded":
            outcomes[event.payload["callId"]] = event
        elif event.type == "EffectResolved" and event.payload["resolution"] == "never_happened":
            cleared.add(event.payload["callId"])
    if spec["role"] != "worker":
        yield from run_agent(world, child, append, committed, started, outcomes)
        return
    roots = read_roots(world, spec["context"])
    step = spec["step"]
    if step["uses"] == "ai.generate":
        yield from generate(world, child, append, committed, started, outcomes)
        return
    if step["uses"] == "code.run":
        calls = [(name, {"n": i}) for i, name in enumerate(step["with"].get("tools", []))]
    else:
        calls = [(step["with"]["tool"], step["with"].get("args", {}))]
    results: list[Any] = []
    counted: Counter[bytes] = Counter()
    for n, (tool, template) in enumerate(calls):
        args = parse_template(template).evaluate(roots)
        position = f"c{n}" if step["uses"] == "code.run" else "s0"
        call = call_id(spec["sessionId"], position)
        nth = counted[canonical_bytes([tool, args])]
        counted[canonical_bytes([tool, args])] += 1
        effect = world.effects.get(tool, "read")
        # The own key first; a fork finds what it inherits under the keys of its origins.
        key, *older = [
            make_idempotency_key(
                run_id=run_id,
                version_id=version_id,
                step_path=spec["stepPath"],
                tool_name=tool,
                args=args,
                nth=nth,
            )
            for run_id, version_id in [[spec["runId"], spec["versionId"]], *spec["origins"]]
        ]
        if call in outcomes:
            event = outcomes[call]
            if event.type.endswith("failed"):
                yield append(
                    [
                        "harness.execute_step.failed",
                        {"error": step_error(event.payload["error"]["message"])},
                    ]
                )
                yield from committed()
                return
            results.append(world.library.value(read_field(event.payload, "result")))
            continue
        if call in started:
            assert started[call]["idempotencyKey"] == key
            if effect == "managed" and call not in cleared:
                answer, result = world.reattach(key)
                number = {"callId": call, "answer": answer}
                yield append(["harness.tool_call.reattached", number])
                yield from committed()
                while answer == "unknown":
                    yield "wait"
                if answer == "succeeded":
                    results.append(result)
                    yield append(
                        ["harness.tool_call.succeeded", {"callId": call, "result": result}]
                    )
                    yield from committed()
                    continue
            elif effect == "once":
                assert call in cleared, "a once effect is never dispatched twice"
        else:
            payload = {
                "callId": call,
                "position": position,
                "caller": "step",
                "toolName": tool,
                "args": args,
                "effect": effect,
                "idempotencyKey": key,
            }
            yield append(["harness.tool_call.started", payload])
            if effect != "read":
                yield from committed()
        found = [spec["inherited"][k] for k in (key, *older) if k in spec["inherited"]]
        if effect != "read" and found:
            results.append(read_wrapped(world, found[0]))
            yield append(["harness.tool_call.succeeded", {"callId": call, "result": results[-1]}])
            continue
        while world.hold is not None and world.hold(tool):
            if child.is_stopping:
                break
            yield "wait"
        if child.is_stopping:
            error = {"name": "Cancelled", "message": "stopped"}
            failed = {**error, "causeCode": "cancelled", "retriable": False}
            yield append(
                ["harness.tool_call.failed", {"callId": call, "error": error}],
                ["harness.execute_step.failed", {"error": failed}],
            )
            yield from committed()
            return
        world.ledger.note(tool, call, key, args)
        yield None
        try:
            result = answer_call(world, spec, tool, args)
        except Exception as error:
            told = {"name": type(error).__name__, "message": str(error)}
            yield append(
                ["harness.tool_call.failed", {"callId": call, "error": told}],
                ["harness.execute_step.failed", {"error": step_error(str(error))}],
            )
            yield from committed()
            return
        yield append(["harness.tool_call.succeeded", {"callId": call, "result": result}])
        yield from committed()
        results.append(result)
    output = results if step["uses"] == "code.run" else results[-1]
    if world.answer is not None and not calls:
        output = world.answer(spec["stepPath"], spec["attempt"], {})
    yield append(["harness.execute_step.succeeded", {"output": output}])
    yield from committed()


def run_agent(
    world: World, child: Child, append: Any, committed: Any, started: Any, outcomes: Any
) -> Any:
    """Carries a planner's, orchestrator's or fixer's session: turns of a model and its calls."""
    spec = child.session
    task = spec["task"]
    results: list[Any] = []
    said: dict[str, Any] = {}
    for turn in range(100):
        said = yield from ask_model(
            world, spec, append, committed, turn, results, started, outcomes
        )
        if "calls" not in said:
            break
        calls = []
        for index, (tool, args) in enumerate(said["calls"]):
            calls.append((call_id(spec["sessionId"], f"t{turn}.{index}"), tool, args))
            if calls[-1][0] not in started:
                yield append(["harness.tool_call.started", make_intent(world, spec, *calls[-1])])
        yield from committed()
        for call, tool, args in calls:
            if call in outcomes:
                payload = outcomes[call].payload
            elif tool in SUB_RUN_TOOLS:
                while call not in child.settled and not child.is_stopping:
                    yield "wait"
                payload = child.settled.get(call)
            else:
                world.ledger.note(tool, call, f"idem_{call}", args)
                yield None
                payload = {"callId": call, "result": world.tools[tool](args)}
                yield append(["harness.tool_call.succeeded", payload])
                yield from committed()
            if payload is None:
                error = step_error("cancelled: the session was stopped")
                yield append([f"harness.{task}.failed", {"error": error}])
                yield from committed()
                return
            results.append(world.library.value(read_field(payload, "result")))
    more = {"metadata": said["metadata"]} if "metadata" in said else {}
    if "error" in said:
        yield append([f"harness.{task}.failed", {"error": step_error(said["error"]), **more}])
    else:
        yield append([f"harness.{task}.succeeded", {"output": said["output"], **more}])
    yield from committed()


def ask_model(
    world: World,
    spec: dict[str, Any],
    append: Any,
    committed: Any,
    turn: int,
    results: list[Any],
    started: Any,
    outcomes: Any,
) -> Any:
    """Returns what the model of an agent says in a turn, recorded or asked for now."""
    call = call_id(spec["sessionId"], f"m{turn}")
    if call in outcomes:
        return world.library.value(read_field(outcomes[call].payload, "response"))
    reserve = {"reserve": world.reserve} if world.reserve is not None else {}
    if call not in started:
        asked = {"requestHash": hash_value(results), "messages": results, "settings": {}}
        number = {"callId": call, "position": f"m{turn}", "turn": turn}
        yield append(["harness.model.called", {**number, **asked, **reserve}])
        yield from committed() if reserve else ()
    elif reserve:
        yield append(["harness.model.repeated", {"callId": call, **reserve}])
        yield from committed()
    world.ledger.note("model", call, call, results)
    yield None
    assert world.model is not None
    said = world.model(spec, turn, results)
    usage = {"requests": 1, "input_tokens": 3, "output_tokens": 5}
    done = {"callId": call, "turn": turn, "response": said, "usage": usage, "model": "sim"}
    yield append(["harness.model.responded", done])
    return said


def make_intent(
    world: World, spec: dict[str, Any], call: str, tool: str, args: dict[str, Any]
) -> dict[str, Any]:
    is_sub_run = tool in SUB_RUN_TOOLS
    if is_sub_run:
        args = {**args, "subRunId": sub_run_id(spec["runId"], call)}
    return {
        "callId": call,
        "position": "t",
        "caller": "model",
        "toolName": tool,
        "args": args,
        "effect": "managed" if is_sub_run else world.effects.get(tool, "read"),
        "idempotencyKey": f"idem_{call}",
    }


def answer_call(world: World, spec: dict[str, Any], tool: str, args: Any) -> Any:
    if world.answer is not None:
        return world.answer(spec["stepPath"], spec["attempt"], {"args": args})
    return world.tools[tool](args)


def generate(
    world: World, child: Child, append: Any, committed: Any, started: Any, outcomes: Any
) -> Any:
    """Carries a step with a model: one request, whose answer is the step's output."""
    spec = child.session
    roots = read_roots(world, spec["context"])
    asked = {"prompt": parse_template(spec["step"]["with"]["prompt"]).evaluate(roots)}
    call = call_id(spec["sessionId"], "m0")
    if call in outcomes:
        result = world.library.value(read_field(outcomes[call].payload, "response"))
    else:
        if call not in started:
            number = {"callId": call, "position": "m0", "turn": 0}
            request = {"requestHash": hash_value(asked), "messages": asked, "settings": {}}
            yield append(["harness.model.called", {**number, **request}])
        world.ledger.note("model", call, call, asked)
        yield None
        assert world.answer is not None, "a world without answers has no model"
        try:
            result = world.answer(spec["stepPath"], spec["attempt"], asked)
        except RuntimeError as error:
            told = {"name": type(error).__name__, "message": str(error)}
            yield append(
                ["harness.model.failed", {"callId": call, "turn": 0, "error": told}],
                ["harness.execute_step.failed", {"error": step_error(str(error))}],
            )
            yield from committed()
            return
        usage = {"requests": 1, "input_tokens": 3, "output_tokens": 5}
        done = {"callId": call, "turn": 0, "response": result, "usage": usage, "model": "sim"}
        yield append(["harness.model.responded", done])
    yield append(["harness.execute_step.succeeded", {"output": result}])
    yield from committed()


def step_error(message: str) -> dict[str, Any]:
    """Returns a step's error; a cause that fails a run is named before a colon."""
    cause = message.partition(":")[0]
    is_fatal = cause in ALWAYS_FAIL_RUN
    cause = cause if is_fatal else "step_failed"
    return {"name": "ToolError", "message": message, "causeCode": cause, "retriable": not is_fatal}


def read_wrapped(world: World, wrapped: dict[str, Any]) -> Any:
    return wrapped["v"] if "v" in wrapped else world.library.value(Ref(wrapped["r"]))


def read_roots(world: World, context: dict[str, Any]) -> dict[str, Any]:
    def read(wrapped: dict[str, Any]) -> Any:
        return read_wrapped(world, wrapped)

    steps = {}
    for step_id, entry in context["steps"].items():
        last = read(entry["lastOutput"]) if "lastOutput" in entry else None
        visits = [read(v) for v in entry.get("allVisits", [])]
        steps[step_id] = {"output": last, "lastOutput": last, "allVisits": visits}
    return {
        "input": read(context["input"]),
        "item": read(context["item"]),
        "itemKey": context["itemKey"],
        "steps": steps,
        "workflow": context["workflow"],
        "cycle": read(context["cycle"]),
    }


__all__ = ["Crash", "Ledger", "LaunchFailed", "MemoryLibrary", "World"]
