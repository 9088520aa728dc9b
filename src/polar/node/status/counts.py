"""What a node's calls and sessions did since it started, for its metrics. Labels have few values: no ids."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from polar import __version__
from polar.monitoring.exposition import LabelLimit, Meters, histogram
from polar.types import EndedCall, Lease, SessionResult, Stage, TrajectoryStatistics

FIRST_TOKEN_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)
CALL_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)
STAGE_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 7200.0)
AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)
MOST_CAUSES = 200
MOST_REASONS = 100


class GatewayCounts:
    """A `SessionObserver`."""

    def __init__(self, policy_updates: Callable[[], int]) -> None:
        """`policy_updates`: changes of the policy version that the node has seen so far."""
        self.meters = Meters(__version__)
        self._policy_updates = policy_updates
        self._cause, self._reason = LabelLimit(MOST_CAUSES), LabelLimit(MOST_REASONS)
        self._stage_of: dict[str, Stage] = {}
        self._plugins: dict[str, tuple[str, str]] = {}
        """By session: the names of its harness and runtime."""
        self._sampled: dict[str, Tally[int]] = {}
        """By session: tokens by the number of policy updates when their call began."""
        self._ages = Tally[int]()
        """Tokens by the policy updates between their sampling and the end of their session."""
        self._make_call_meters(self.meters)
        self._make_session_meters(self.meters)

    def _make_call_meters(self, meters: Meters) -> None:
        about = "Model calls that ended: answered, final_message (not from the engine), refused or failed."
        self._calls = meters.counter("polar_gateway_calls", about, "dialect", "outcome")
        about = "Model calls without a reply, by the gateway's error code."
        self._problems = meters.counter("polar_gateway_call_problems", about, "code")
        about = "Prompt tokens of sampled calls: computed by the engine, from its prefix cache, or not reported."
        self._prompt = meters.counter("polar_gateway_prompt_tokens", about, "source")
        self._tokens = meters.counter("polar_gateway_sampled_tokens", "Tokens that the engine sampled.")
        about = "From a call's arrival to its first token: rendering, pauses and the engine's queue included."
        self._first_s = meters.histogram("polar_gateway_first_token_seconds", about, FIRST_TOKEN_S)
        about = "From a call's arrival to its last token."
        self._call_s = meters.histogram("polar_gateway_call_seconds", about, CALL_S)
        for source in ("computed", "cache", "unknown"):
            self._prompt.labels(source)  # a series that begins at zero has a rate from its first change on

    def _make_session_meters(self, meters: Meters) -> None:
        about = "Attempts that ended at this node, also those that run again elsewhere."
        labels = ("stage", "failed_by", "where", "type", "harness", "runtime")
        self._attempts = meters.counter("polar_gateway_attempts", about, *labels)
        about = "How long attempts were in each stage."
        self._stage_s = meters.histogram("polar_gateway_stage_seconds", about, STAGE_S, "stage")
        about = "Pairs of calls that a builder could merge, and did (`merged`); their ratio is the merge rate."
        self._pairs = meters.counter("polar_gateway_call_pairs", about, "merged")
        for merged in ("yes", "no"):
            self._pairs.labels(merged)
        about = "Calls that begin a new trace although they follow another call."
        self._breaks = meters.counter("polar_gateway_breaks", about, "reason")
        about = "Sampled tokens that are trainable in no trace."
        self._dropped = meters.counter("polar_gateway_dropped_tokens", about, "reason")

    @property
    def stages(self) -> Tally[Stage]:
        """Sessions in their stages now."""
        return Tally(self._stage_of.values())

    def collect(self) -> Iterator[Metric]:
        yield from self.meters.collect()
        age = "Staleness: policy updates between the sampling of a token and the end of its session."
        yield histogram("polar_gateway_token_age_updates", age, self._ages, AGES)

    def leased(self, lease: Lease) -> None:
        self._plugins[lease.session.session_id] = (_name(lease.task.harness.name), _name(lease.task.runtime.name))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        if stage.final:
            self._stage_of.pop(session_id, None)
        else:
            self._stage_of[session_id] = stage

    def call_ended(self, call: EndedCall) -> None:
        self._calls.labels(call.dialect, call.outcome).inc()
        if call.problem:
            self._problems.labels(call.problem).inc()
        if call.first_token_s is None or call.call_s is None:
            return
        self._first_s.observe(call.first_token_s)
        self._call_s.observe(call.call_s)
        self._tokens.inc(call.sampled_tokens)
        if call.evaluated_tokens is None:
            self._prompt.labels("unknown").inc(call.prompt_tokens)
        else:
            computed = min(call.evaluated_tokens, call.prompt_tokens)
            self._prompt.labels("computed").inc(computed)
            self._prompt.labels("cache").inc(call.prompt_tokens - computed)
        self._sampled.setdefault(call.session_id, Tally())[call.policy_updates] += call.sampled_tokens

    def ended(self, result: SessionResult) -> None:
        self._count_cause(result)
        for stage, seconds in result.stage_s.items():
            self._stage_s.labels(stage).observe(seconds)
        self._count_traces(result.statistics)
        now = self._policy_updates()
        for updates, tokens in self._sampled.pop(result.session_id, Tally[int]()).items():
            self._ages[now - updates] += tokens

    def _count_traces(self, statistics: TrajectoryStatistics) -> None:
        """A builder of a task's own may say any number, and a counter takes no negative one."""
        pairs = max(0, statistics.append_only_pairs)
        merged = min(max(0, statistics.merged_pairs), pairs)
        self._pairs.labels("yes").inc(merged)
        self._pairs.labels("no").inc(pairs - merged)
        for reason, count in statistics.breaks.items():
            self._breaks.labels(self._reason(reason)).inc(max(0, count))
        for reason, count in statistics.dropped.items():
            self._dropped.labels(self._reason(reason)).inc(max(0, count))

    def _count_cause(self, result: SessionResult) -> None:
        harness, runtime = self._plugins.pop(result.session_id, ("", ""))
        failure, stage = result.failure, result.stage.value
        if failure is None:
            cause = ("", "", "")
        else:
            by = "agent" if failure.agent else "infrastructure"
            where, _, kind = self._cause(f"{failure.where}\0{failure.type}").partition("\0")
            cause = (by, where, kind or where)
        self._attempts.labels(stage, *cause, harness, runtime).inc()


def _name(plugin: str) -> str:
    """A plug-in of a task's own (`module:Class`) is any text that a task's author writes."""
    return "own" if ":" in plugin else plugin
