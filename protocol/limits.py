"""Every named limit of the system, in one place, each with its unit in its name."""

FRAME_BYTES_MAX = 1 << 20  # one ZeroMQ part; larger values travel as blobs
FRAME_PARTS_MAX = 4  # MAXMSGSIZE limits a part, not a message: parts are counted too
FRAME_MESSAGES_MAX = 4_096  # messages in one frame
VALUE_DEPTH_MAX = 64  # nesting of a JSON value, checked iteratively
CONTAINER_ITEMS_MAX = 65_536  # entries of one list or map
INLINE_BYTES_MAX = 256 * 1024  # a larger value of an event goes to the blob store
BLOB_BYTES_MAX = 64 << 20
SESSION_EVENTS_MAX = 100_000
UNACKNOWLEDGED_APPENDS_MAX = 65  # declared parallelism of a session (64) + 1
CAPTURED_OUTPUT_BYTES_MAX = 1 << 20  # stdout and stderr of one session's process
ERROR_TEXT_CHARS_MAX = 8_192
ID_CHARS_MAX = 80  # keeps every path made of ids below the 255 bytes of a file name
HISTORY_PAGE_BYTES = 512 * 1024  # half a frame: the envelope always fits beside it

CHILDREN_PER_CORE = 4
CHILDREN_MAX = 64
MAX_RESTARTS = 5  # OTP's restart intensity: this many ...
RESTART_PERIOD_MS = 60_000  # ... within this period fail the attempt
RESTART_DELAY_MAX_MS = 5_000
RESTART_DELAY_FIRST_MS = 50  # the first restart is immediate, the second waits this long
HEARTBEAT_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 1_000
LAUNCH_TIMEOUT_MS = 30_000  # from launch to hello; a cold fork server needs up to 2.2 s
GRACE_MS = 10_000  # what a session may still take after a stop was asked for
DRAIN_MS = 250  # frames that a dead child had sent are read for at most this long
RUNS_LISTED_MAX = 1_000
STEPS_PER_SCOPE_MAX = 1_000  # the graph keeps the ancestors of each: n²/2 at most

SUB_RUNS_CONCURRENT = 10  # of one run, unless its orchestrator says otherwise
SUB_RUN_DEPTH_MAX = 32
SUB_RUN_LINGER_MS = 2_000  # how long a session that waits for sub-runs keeps its process
NOTE_CHARS_MAX = 100_000  # of a cycle's note: it stands in the next planner's prompt
PLAN_REVISIONS_MAX = 3  # drafts that a planner may write again, unless it says otherwise
PLANNER_TURNS_MAX = 25
ORCHESTRATOR_TURNS_MAX = 50
