"""What /metrics tells: counted here per request, read from the engine's thread per scrape."""

import prometheus_client as prom
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from serve.scheduler import READY, Ended

_SECONDS = (.01, .03, .1, .3, 1, 3, 10, 30, 100, 300, 1000, 3600)

# metric, help, members of waste_counters by label value
_ENGINE = (
    ("waste_engine_rows", "Rows computed", "kind",
     {"prefill": "prefill_tokens", "decode": "decode_tokens"}),
    ("waste_expert_uses", "Experts used, by where they were", "found",
     {"resident": "hits_resident", "prefetched": "hits_prefetch", "missed": "misses"}),
    ("waste_read_bytes", "Bytes of experts read", "why",
     {"all": "bytes_read", "guess": "bytes_prefetch"}),
    ("waste_reads_failed", "Reads that failed", "how",
     {"retried": "reads_retried", "for_good": "reads_failed", "bad_bytes": "records_refused"}),
    ("waste_guesses", "Experts read for guesses", "outcome",
     {"all": "guesses", "wasted": "guesses_wasted", "refused": "guesses_refused"}),
    ("waste_engine_seconds", "Where the time of passes went", "part",
     {"io": "sec_io", "mix": "sec_mix", "mlp": "sec_mlp", "route": "sec_route",
      "checks": "sec_checks", "experts": "sec_experts", "head": "sec_head",
      "other": "sec_other"}),
)
_STORE = {"kept": "kept", "dropped": "dropped", "refused": "refused", "resumed": "resumed"}


class EngineCollector:
    """The last snapshot of the scheduler; the context itself is another thread's."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def collect(self):
        s, now = self.scheduler, self.scheduler.snapshot
        queued, feeding, speaking = s.counts()
        requests = GaugeMetricFamily("waste_answers", "Answers by where they are", labels=["state"])
        for state, n in (("queued", queued), ("prefilling", feeding), ("answering", speaking)):
            requests.add_metric([state], n)
        yield requests
        yield GaugeMetricFamily("waste_sessions", "Answers that can be computed at once",
                                s.n_sessions)
        yield GaugeMetricFamily("waste_ready", "1: takes requests", s.phase == READY)
        if now:
            yield from self._engine(now)
            yield from self._states(now)

    @staticmethod
    def _engine(now):
        for name, text, label, members in _ENGINE:
            family = CounterMetricFamily(name, text, labels=[label])
            for value, member in members.items():
                family.add_metric([value], now["counters"][member])
            yield family
        yield CounterMetricFamily("waste_passes", "Passes", now["passes"])
        counters = now["counters"]
        yield CounterMetricFamily("waste_pictures", "Pictures the vision tower was shown",
                                  counters["images"])
        yield CounterMetricFamily("waste_tower_seconds", "Seconds it took, beside the passes",
                                  counters["sec_images"])
        yield CounterMetricFamily("waste_overtakes", "Short requests that went first",
                                  now["overtakes"])

    @staticmethod
    def _states(now):
        store = now["store"]
        kept = GaugeMetricFamily("waste_states", "Kept states of prompts", labels=["where"])
        size = GaugeMetricFamily("waste_state_bytes", "Bytes of them", labels=["where"])
        for where, n, n_bytes in (("memory", "n_memory", "memory_bytes"),
                                  ("files", "n_files", "file_bytes")):
            kept.add_metric([where], store[n])
            size.add_metric([where], store[n_bytes])
        yield kept
        yield size
        events = CounterMetricFamily("waste_state_events", "What became of states",
                                     labels=["event"])
        for event, member in _STORE.items():
            events.add_metric([event], store[member])
        events.add_metric(["not_kept"], now["states_not_kept"])
        yield events
        yield CounterMetricFamily("waste_positions_saved", "Prompt positions not computed again",
                                  store["positions_saved"])


class Metrics:
    def __init__(self, scheduler):
        self.registry = prom.CollectorRegistry()
        self.registry.register(EngineCollector(scheduler))
        r = {"registry": self.registry}
        self.requests = prom.Counter("waste_http_requests", "Requests", ["path", "status"], **r)
        self.seconds = prom.Histogram("waste_http_seconds", "From a request's head to its last "
                                      "byte", ["path"], buckets=_SECONDS, **r)
        self.outcomes = prom.Counter("waste_outcomes", "Answers by how they ended", ["outcome"],
                                     **r)
        self.tokens = prom.Counter("waste_tokens", "Tokens of ended answers", ["kind"], **r)
        self.queued = prom.Histogram("waste_queue_seconds", "In the queue", buckets=_SECONDS, **r)
        self.first = prom.Histogram("waste_first_token_seconds", "From the queue's end to the "
                                    "first token", buckets=_SECONDS, **r)
        self.rate = prom.Histogram("waste_decode_token_seconds", "Per token behind the first",
                                   buckets=(.003, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30), **r)

    def request(self, path, status, seconds):
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def answer(self, _job, outcome):
        """Called on the engine's thread."""
        if not isinstance(outcome, Ended):
            self.outcomes.labels(outcome.kind).inc()
            return
        u = outcome.usage
        self.outcomes.labels(outcome.reason).inc()
        for kind, n in (("prompt", u.prompt), ("cached", u.cached), ("generated", u.generated),
                        ("reasoning", u.reasoning)):
            self.tokens.labels(kind).inc(n)
        self.queued.observe(u.queued_ms / 1e3)
        self.first.observe(u.prefill_ms / 1e3)
        if u.generated > 1:
            self.rate.observe(u.decode_ms / 1e3 / (u.generated - 1))

    def text(self):
        return prom.generate_latest(self.registry), prom.CONTENT_TYPE_LATEST
