"""The constants by which engines are measured, by subject.

Durations are in seconds, ticks last `TICK_SECONDS`. A constant that was set by a run names it; the
others follow from the reason that they give. `pd-router simulate` compares values: the same seeds
with one constant changed.
"""

from typing import Final

# Ticks and estimates (speed_estimator.py, speed_buckets.py).

TICK_SECONDS: Final = 0.25
"""Length of one bucket, and seconds between ticks."""

FORGET_SECONDS: Final = 60.0
"""Estimates expire after this long without measurements; otherwise an engine that was slow once
might never get requests again."""

SILENT_SECONDS: Final = 1.0
"""Shortest silence after a request that counts as a measurement. Probes that are refused at once
measure nothing."""

USUAL_PREFILL_SECONDS: Final = 0.0001
"""Seconds per prompt token to assume until an engine has streamed an answer to a prompt that it
computed: what a dense 70B model takes on four H100."""

BEST_PREFILL_DRIFT: Final = 1.0025
"""Factor per tick by which the best prefill time grows: it doubles in 70 s."""

MAX_BUCKETS: Final = 16
"""Most buckets that an estimate uses."""

MIN_BUCKETS: Final = 4
"""Fewest buckets that an estimate uses: a step that also prefills takes several times as long."""

MEAN_ERROR: Final = 0.25
"""Target for the relative error of an estimate where rates fluctuate."""

STEADY_WINDOW: Final = 8
"""Most buckets that are needed where engines are steady, apart from pauses."""

VARIANCE_BUCKETS: Final = 8
"""Fewest buckets for a variance of the rates."""

RELIABLE_TOKENS: Final = 8
"""Tokens that make an estimate reliable."""

# Pauses (speed_buckets.py).

HIDDEN_TICKS: Final = 4
"""Ticks without tokens that do not count as slowness. An engine that pauses for longer than a
second has to be avoided, since there is no telling how long the pause will last."""

STEADY_TICKS: Final = 2
"""Ticks in a row with tokens from which an engine counts as generating steadily: its steps take
less than two ticks."""

SHORTEST_GAPS: Final = 4.0
"""Shortest pause, in multiples of the time between two tokens: where steps take longer than a tick,
some ticks have no token."""

MISSED_EVENTS: Final = 8.0
"""Fewest events missed in a pause: the events of one or two streams may be far apart."""

# Prompts beside streams (speed_buckets.py).

INTERFERENCE_DECAY: Final = 0.99
"""Factor by which the sums of the regression decay per measurement; there are four a second."""

INTERFERENCE_RIDGE: Final = 0.1
"""Ridge of the regression: relative variance of prompt tokens per token below which the two terms
are not separated. It errs towards 0, because where prompts count for too much an engine without
any looks slow."""

MAX_PROMPT_SHARE: Final = 0.25
"""Upper bound of the result: hundreds of prompt tokens fit into one step."""

PROMPT_SHARE_MARGIN: Final = 2.0
"""Factor by which the result may exceed what first tokens show: that is a mean, and prompts that
miss their cached prefix take longer."""

# Legs that wait for a first token (waiting_legs.py).

UNSEEN_PREFILL_FACTOR: Final = 2.0
"""Multiple of the expected time to first token after which a unary request's prompt counts as
computed: its first token is not seen, and the answer may take a hundred times as long."""

OVERDUE: Final = 2.0
"""Multiple of the expected time after which a prompt without a first token is no longer taken to be
in progress: it waits for a slot, or the engine stands still."""

# Costs of prompts (prompt_costs.py).

PROMPT_OVERHEAD: Final = 64.0
"""Fixed cost of a prefill, in prompt tokens: what takes as long as the base of a line, until
samples show it."""

MAX_OVERHEAD: Final = 8192.0
"""Upper bound of the base, in prompt tokens: with more, prompt lengths would hardly matter."""

MEMORY_SAMPLES: Final = 128.0
"""Samples that an engine's fit spans: some seconds under load, so that it follows the load."""

EQUAL_TOKENS: Final = 256.0
"""Samples are weighted by 1 / (this + tokens): errors of short prompts count in seconds, those of
long ones relatively. Otherwise long prompts would determine the base, which matters for short
ones."""

COST_RIDGE: Final = 0.01
"""Ridge of the regression: relative variance of the token counts below which no slope is
derived, because prompts of equal length show none."""

MIN_VARIANCE: Final = 0.1
"""Relative variance of the token counts from which `seconds_per_token` has a value, because they
show a slope."""

MAX_COST_RATIO: Final = 8.0
"""Cap on a sample, as a multiple of its expected seconds: an engine that captures CUDA graphs for a
minute shows nothing of prompts."""

EXPECTED_FROM: Final = 8.0
"""Samples from which `MAX_COST_RATIO` applies, and `overhead_of` and `seconds_per_token` have a
value."""

RECENT_PROMPT_SECONDS: Final = 10.0
"""Span of `recent_tokens`: long enough for several answers, and shorter than any time-out."""

RECENT_DECAY: Final = 0.9753
"""The decay factor per tick for it: exp(-TICK_SECONDS / RECENT_PROMPT_SECONDS)."""

# Short unary answers (prompt_costs.py).

ANSWER_MIN_BUCKETS: Final = 4
"""Fewest ticks that a measurement uses."""

ANSWER_MAX_BUCKETS: Final = 60
"""Most ticks: after 15 s without answers the speed counts as unknown. An engine that was avoided
then gets requests again, which is the only way to find out that it has recovered."""

RELIABLE_ANSWERS: Final = 8.0
"""Fewest answers that make a measurement reliable. More are needed where they differ much:"""

RELIABLE_ERROR: Final = 0.2
"""Enough to bring the relative error of their mean below this. Where some answers have one token
and others thirty, eight of them may take three times as long as eight others by chance."""

# Tokens per event, and the engine's own counter (counted_speed.py).

CALIBRATION_TOKENS: Final = 16
"""Tokens needed for an estimate; until then the pool's is used, or one token per event."""

CALIBRATION_MEMORY: Final = 4096
"""Events after which older counts are halved."""

CALIBRATION_EVENTS: Final = 200
"""Fewest events between two scrapes for calibration, because the engine's counter is some steps
ahead of the relay."""

MAX_CALIBRATION_RATIO: Final = 2.0
"""Cap on one answer's tokens per event, as a multiple of the learned value: a parser (of tool
calls, say) may hold an answer's tokens back and send them as one event."""

MAX_TOKENS_PER_EVENT: Final = 64.0
"""No sensible --stream-interval is larger; a larger value is an engine's counting error."""

COUNTER_DECAY: Final = 0.5
"""Factor by which the counter's sums decay per scrape: a speed spans about two seconds."""

LEAST_SEEN: Final = 0.75
"""Share of the tokens generated for open streams that events must show for them to agree. It is
below 1 because the counter is some steps ahead of the events."""

BLIND_SHARE: Final = 0.25
"""If a smaller share of this router's running requests are streams past their first token, and
events do not show what was generated, they do not show the speed."""

RELIABLE_COUNT: Final = 32.0
"""Tokens from which the comparison of events and counter is reliable."""

SURE_TOKENS: Final = 8.0
"""Generated tokens without an event that prove that the engine is alive; at least half of all must
be missing too."""

TOKENS_PER_REQUEST: Final = 16.0
"""Fewest tokens per request: with fewer, the time for the prompt dominates."""

DIFFERED_SCRAPES: Final = 2
"""Scrapes in a row in which events and counter disagree, after which the counter is used. One is
not enough: requests that begin at the same moment look like that."""

AGREED_SCRAPES: Final = 8
"""Scrapes in which events and counter agree, after which the events are used again."""

FRESH_WINDOWS: Final = 3.0
"""Age up to which a counted speed is used, in intervals between the last two scrapes."""

# Gauges (scrapes.py).

STALE_AFTER: Final = 3
"""Consecutive scrapes without a change after which gauges are stale. An engine that computes one
long prompt may look unchanged for some seconds, one that generates does not."""

FRESH_SECONDS: Final = 2.0
"""Oldest scrape that shows whether requests wait."""

STEADY_RUNNING: Final = 0.1
"""Two counts of running requests that differ by this share at most (or by 1) count as equal."""

# Sequences side by side (capacity.py).

RECENT_SECONDS: Final = 10
"""The limit is at least the most that ran in this time. Longer than the pause between two waves of
answers that end in the same step."""

SURE_SECONDS: Final = 2
"""If requests queue for this long, the limit is the most that ran in it: the KV cache is full."""

HOLD_SECONDS: Final = 5.0
"""Seconds after requests last queued until the limit is raised."""

RAISE_SECONDS: Final = 1.0
"""Seconds between two raises: long enough to see whether the last one delays first tokens."""

TTFT_FACTOR: Final = 1.5
"""Multiple of the mean TTFT before the raises above which the last raise is undone."""

FORGET_LIMIT_SECONDS: Final = 60.0
"""Seconds after requests last queued until the limit counts as unknown."""

ROOM_FACTOR: Final = 3
"""Where other engines are full, an engine of unknown limit may have this multiple of the most
sequences it was seen to run. So the larger engines of a mixed pool reach their limits within some
ticks."""

QUEUE_SECONDS: Final = 0.5
"""Shortest wait for a first token that counts as queueing ..."""

DELAY_SECONDS: Final = 0.1
"""The same where it only means that an engine of unknown limit may be full ..."""

QUEUE_STEPS: Final = 10.0
"""... and in the engine's seconds per token: a first token takes a few steps by itself."""

PREFILL_SLACK: Final = 2.0
"""... and in times of the prefill of the pending prompts at the best measured speed."""

BURST_REQUESTS: Final = 4
"""Requests waiting for a first token that are taken for a burst behind full slots: a slow prefill
delays fewer."""
