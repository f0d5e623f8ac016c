"""The constants by which engines are judged, by subject.

Durations are in seconds, ticks last `TICK_SECONDS` of core/speed/tuning.py. A constant that was set
by a run names it; the others follow from the reason that they give. `pd-router simulate` compares
values: the same seeds with one constant changed.
"""

from typing import Final

from router.core.candidate import STEP_TOKENS
from router.core.speed.tuning import TICK_SECONDS

# Stalls (rules.py).

GAP_FACTOR: Final = 20.0
"""Multiple of the expected time between tokens: a step with a long prompt takes several of it."""

PREFILL_FACTOR: Final = 4.0
"""Multiple of the expected prefill time of all pending prompts."""

UNKNOWN_PREFILL_SECONDS: Final = 0.001
"""Seconds per prompt token to assume for an engine whose first tokens after a prefill were never
seen (it loads KV caches, or gives unary answers). Even slow engines take less."""

COLD_SECONDS: Final = 180.0
"""Seconds in which the first token since an engine's start may come: four times the 42 s that a
capture of CUDA graphs was seen to take."""

HUNG_SECONDS: Final = 5.0
"""Seconds without an answer after which a stalled engine still counts as hanging, even if the
setting is longer: only probes, which wait for twice as long, are sent to it then."""

TRANSFER_SECONDS: Final = 10.0
"""Grace for an engine that only waits for KV caches to be loaded: it can compute nothing until
then, and 4 GB over 10 Gb/s take 3.4 s."""

RETRY_SECONDS: Final = 30.0
"""A stalled engine is tried again after this long without a request or probe waiting there in
vain: otherwise its recovery could not be noticed."""

# Slowness of one engine (rules.py).

SLOW: Final = 3.0
"""Slowdown from which an engine gets only requests that it would still finish first."""

HANDS_OVER: Final = 4.0
"""Slowdown from which, after two seconds, the streams of a slow engine go on with other engines.
(`pd-router simulate --scenario slow8 --stream-continuation off --stream-continuation on`: slowest
answer 8.7 and 5.1 s; nothing changes in slow3.)"""

MIN_SLOWDOWN: Final = 0.5
"""No engine counts as more than twice as fast as the median: until its slots are known it would
get more than it can serve."""

RECOVERED: Final = 1.5
"""Slowdown below which every engine is no longer slow. Well below `SLOW`, because an engine with
little work looks faster than it is."""

MOST_RECOVERED: Final = 2.5
"""Upper bound of the slowdown below which an engine has recovered, whatever it was at its best."""

MEDIAN_DRIFT: Final = 1.05
"""Factor per tick by which the lowest median of a pool is forgotten: it doubles in 3.5 s. An engine
has not recovered because the others have become slower for some seconds, as all do that need the
processor of a busy host. (With bursts of noise that slow the others by 2 to 8 for up to 3 s, an
engine that stayed slow was taken back 1.9 times a minute without this, and never with it; one that
had recovered was taken back after 2.0 instead of 1.4 s in the mean, without noise after 1.3 s.)"""

SAME_SPEED: Final = 1.25
"""Slowdowns up to this factor count as 1: equal engines differ by some percent."""

SAME_ANSWERS: Final = 1.5
"""The same for speeds from short answers: other clients' requests there are not known exactly."""

SAME_PROMPTS: Final = 2.0
"""The same for seconds per prompt token: the fixed cost of a step weighs more in short prompts."""

NOISE_SECONDS: Final = 0.002
"""Seconds between tokens below which network time dominates; matters for tiny models only."""

LASTING_TICKS: Final = 8
"""Ticks that an engine has to be slow before requests go elsewhere although it holds part of their
prompts: longer than most measurement errors, and short enough that an engine that has become slow
does not keep them. (With `pd-router simulate --scenario unsteady-chats`, 6 ticks give fewer cache
hits and 10 hardly more.)"""

# A pool (assess.py).

MIXED_SHARE: Final = 1 / 3
"""If more than this share of a pool, and more than one engine, has been slow since it joined, the
pool is of mixed hardware and they are not outliers."""

HISTORY_WEIGHT: Final = 0.01
"""Weight of one tick in the moving average of a slowdown: it spans half a minute."""

AVERAGE_TICKS: Final = 20
"""Ticks that the average of a prefill engine's speed spans, where other clients use it too: how
many of their prompts are computed before one of ours is not known, so that in a few seconds an
engine looks several times slower than it is. One that is eight times slower is noticed in 2 s
still. (In `pd-router simulate`, 60 ticks do no better with three and five routers.)"""

NEGLIGIBLE_SECONDS: Final = 0.08
"""Delay of a first token that is too short to choose an engine by, within these bounds:"""

MIN_NEGLIGIBLE_TOKENS: Final = 1280.0
"""Pending prompt tokens. (With 800 in `pd-router simulate --scenario multi-turn`, new chats are
spread so unevenly that caches lose prefixes: first tokens come 60 % later; with 1,024, 3 %.)"""

MAX_NEGLIGIBLE_TOKENS: Final = float(STEP_TOKENS)

FIRST_TOKEN_WEIGHT: Final = 1 / 32
"""Cost, in requests, of a prompt token that delays a first token on a decode engine. One more
stream hardly slows down the others, but a prompt delays them all. (In `pd-router simulate`, values
from 1/64 to 1/16 make little difference. Measured costs are too low, because gaps grow with
prefills.)"""

PREFILL_TOKENS_PER_REQUEST: Final = 64
"""Fixed cost of a request on a prefill engine, in prompt tokens."""

# Ticks (pool_judge.py).

LATE_SECONDS: Final = 2 * TICK_SECONDS
"""Seconds since the last tick from which a tick is late. Two workers on one core delay it by up to
a few hundredths of a second."""

LENGTH_DECAY: Final = 0.99
"""Decay per tick of the mean answer length, which thus covers about half a minute."""

SILENT_ENGINES: Final = 2
"""If at least this many engines send nothing although together at least ..."""

SILENT_TOKENS: Final = 16
"""... this many tokens are due, the engines are not the cause."""

# Slow start (pool_judge.py).

MIN_SLOW_START_WEIGHT: Final = 0.1
"""Initial weight of slow start; Envoy's min_weight_percent."""

SLOW_START_FACTOR: Final = 4.0
"""Length of the slow start of an engine that was slow, as a multiple of the time that it was slow;
at most `slow_start_seconds`. After a short time it still has most of its requests. (With 2, an
engine that is slow every other second gets too many.)"""

# Failures (outlier.py, member.py).

MINIMUM_REQUESTS: Final = 20
"""Fewest requests in an interval, of the engine and of the others together, for the rate rule."""

MINIMUM_DIFFERENCE: Final = 0.1
"""Smallest difference of two failure rates that ejects."""

Z: Final = 3.0
"""Standard errors between the two rates that eject; chance exceeds them once in 700 intervals."""

FAILURE_WEIGHT: Final = 1 / 8
"""Weight of one answer in the moving share of failures: large enough that failures of the whole
pool show within some answers."""

CHANCE: Final = 1e-9
"""Consecutive failures that are at least this probable at the others' failure rate do not eject."""

SHARED_CHANCE: Final = 1e-2
"""An ejection is withdrawn if its streak is at least this probable at the median failure rate of
the others: five in a row where two in five fail. Far above `CHANCE`, because it is checked at every
tick: a single other engine of whose requests 3 % fail reaches a moving rate of a fifth every
minute."""

SAME_CRASH_SECONDS: Final = 1.0
"""Failures within this many seconds, of requests sent before the first of them, count as one
crash."""

REPEATED_FAILURES: Final = 5
"""Speed probes in a row that have failed when operators learn of it. Each is half as long as the
one before (core/fleet/probing.py), so the length is not the cause."""
