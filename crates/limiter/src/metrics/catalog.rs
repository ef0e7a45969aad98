//! Every metric of Tollgate, each named once: its name, type, labels, help text, and the question that it answers.
//!
//! `docs/metrics.md` is generated from this file. Names follow Prometheus' conventions: `_total` for counters, base units
//! (`_seconds`, `_bytes`, `_ratio`). No label has values that come from clients: rules, tiers, routes, shards and upstreams
//! are configured, and everything else is a fixed set. The values of a rule that is removed disappear.

use std::fmt;

/// A metric.
#[derive(Debug)]
pub struct MetricDefinition {
    /// The name, with the suffix of its unit and type.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence on what is counted.
    pub help: &'static str,
    /// The question that it answers, for the documentation.
    pub question: &'static str,
    /// The part of Tollgate that it belongs to, a heading in the documentation.
    pub section: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of observations by size.
    Histogram,
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

macro_rules! metrics {
    ($($section:literal { $($id:ident $kind:ident $name:literal [$($label:literal),*] $help:literal $question:literal)* })*) => {
        $($(
            #[doc = $help]
            pub static $id: MetricDefinition = MetricDefinition {
                name: $name,
                kind: MetricKind::$kind,
                labels: &[$($label),*],
                help: $help,
                question: $question,
                section: $section,
            };
        )*)*

        /// All metrics, in the order of the documentation.
        pub static ALL: &[&MetricDefinition] = &[$($(&$id,)*)*];
    };
}

metrics! {
    "Decisions" {
        DECISIONS Counter "tollgate_decisions_total" ["rule", "algorithm", "tier", "route", "door", "outcome"]
            "Decisions, each counted once, under the rule that determined the outcome."
            "How much traffic is limited, by which rule, and for which routes and tiers?"
        INVALID_REQUESTS Counter "tollgate_invalid_requests_total" ["door"]
            "Requests that no decision was made for, because they were invalid."
            "Do callers send requests that can never pass, such as a cost above the limit?"
        RETRY_AFTER Histogram "tollgate_retry_after_seconds" ["rule"]
            "Retry times of limited requests."
            "How long are clients told to wait?"
        REMAINING Histogram "tollgate_remaining_ratio" ["rule"]
            "Share of the limit that was left after an admitted request."
            "How close do clients come to the limit? Is it too high or too low?"
        BURST_EXHAUSTED Counter "tollgate_burst_exhausted_total" ["rule"]
            "Admitted requests that took the last token."
            "How often is a client one request away from being limited?"
        DECISION_DURATION Histogram "tollgate_decision_duration_seconds" ["path"]
            "Time that a decision took; path is local (a sample) or remote (waited for the shared store, all of them)."
            "How much latency does Tollgate add to a request?"
    }
    "Shared store" {
        STORE_CALL_DURATION Histogram "tollgate_store_call_duration_seconds" ["shard"]
            "Time between sending a script call and its reply."
            "Is a shard slow?"
        STORE_CALLS Counter "tollgate_store_calls_total" ["shard"]
            "Script calls sent to a shard."
            "How many calls does the traffic cost?"
        STORE_BATCH_SIZE Histogram "tollgate_store_batch_clients" []
            "Clients whose checks travelled in one script call."
            "Do checks of many clients share calls?"
        STORE_TIMEOUTS Counter "tollgate_store_timeouts_total" ["shard"]
            "Script calls without a reply within the timeout."
            "Does the network or a shard lose calls?"
        STORE_ERRORS Counter "tollgate_store_errors_total" ["shard", "kind"]
            "Replies of a shard that were errors, and replies that were invalid."
            "Does a shard refuse commands, and why?"
        STORE_BREAKER_STATE Gauge "tollgate_store_breaker_state" ["shard"]
            "State of the circuit breaker of a shard: 0 closed, 1 half-open, 2 open."
            "Which shards are unavailable now?"
        STORE_BREAKER_OPENED Counter "tollgate_store_breaker_opened_total" ["shard"]
            "Times the circuit breaker of a shard opened."
            "Does a shard flap?"
        STORE_UNAVAILABLE Counter "tollgate_store_unavailable_seconds_total" ["shard"]
            "Time during which the circuit breaker of a shard was not closed."
            "For how long were decisions made by the failure policy?"
        STORE_CLOCK_DRIFT Gauge "tollgate_store_clock_drift_seconds" ["shard"]
            "Clock of the shard minus clock of this node."
            "Does a clock run wrong?"
        STORE_CLOCK_STEPS Counter "tollgate_store_clock_steps_total" ["shard"]
            "Steps of the clock of a shard that nodes noticed."
            "Did a failover move the clock?"
    }
    "Leases" {
        LEASE_CHECKS Counter "tollgate_lease_checks_total" ["result"]
            "Checks at the shared store by how they were decided: credit and refused without a call, remote with one."
            "Which share of the checks needs no call?"
        LEASE_COALESCED Counter "tollgate_lease_coalesced_checks_total" []
            "Checks that joined a call which other checks of the same client had caused."
            "Do concurrent checks of one client share calls?"
        LEASE_CREDIT Gauge "tollgate_lease_credit_tokens" []
            "Leased tokens on this node that are not spent."
            "How many tokens would a crash of this node lose?"
        LEASES Gauge "tollgate_leases" []
            "Leases and remembered replies on this node."
            "How large is the lease table?"
        NODES Gauge "tollgate_nodes" []
            "Nodes that share the store, this one included."
            "Do all nodes see each other?"
    }
    "Rules" {
        RULES_REVISION Gauge "tollgate_rules_revision" []
            "Revision of the rules in force."
            "How often have the rules changed since the start?"
        RULES_INFO Gauge "tollgate_rules_info" ["digest"]
            "Always 1; the label is the digest of the rules in force, the first 16 digits of the SHA-256 of their text."
            "Do all nodes run the same rules?"
        RULES_LOADED Gauge "tollgate_rules_loaded_timestamp_seconds" []
            "Unix time at which the rules in force were installed."
            "When did the rules change last?"
        RULES_RELOAD_FAILURES Counter "tollgate_rules_reload_failures_total" []
            "Rules that were read and not installed: invalid, failed tests, or unreadable."
            "Was a bad rule file saved?"
        RULES_STALE Gauge "tollgate_rules_stale" []
            "1 if the rule source has newer rules that could not be installed, or cannot be read; else 0."
            "Does this node serve rules that differ from its source?"
        RULES_FAILED_POLLS Gauge "tollgate_rules_failed_polls" []
            "Polls of the rule repository or of the control plane that failed since the last answer."
            "Can this node reach the source of its rules?"
        RULES Gauge "tollgate_rules" []
            "Rules in force."
            "How many rules are there?"
    }
    "Embedded store" {
        MEMORY_STATES Gauge "tollgate_memory_states" []
            "States in the embedded store."
            "How many keys are active?"
        MEMORY_BYTES Gauge "tollgate_memory_bytes" []
            "Memory of the states in the embedded store."
            "How near is the embedded store to its cap?"
        MEMORY_LIMIT Gauge "tollgate_memory_limit_bytes" []
            "Cap of the memory of states in the embedded store."
            "How near is the embedded store to its cap?"
        MEMORY_EVICTIONS Counter "tollgate_memory_evictions_total" []
            "States that were removed because they equal a fresh one."
            "How fast do keys come and go?"
        MEMORY_OVERFLOW Counter "tollgate_memory_overflow_checks_total" []
            "Checks charged to a shared overflow cell because the cap was reached."
            "Is the cap too small, or is there a flood of keys?"
    }
    "Admission and abuse" {
        QUEUED Gauge "tollgate_queued_requests" []
            "Requests that wait for their turn under on_exceed: queue."
            "Do queues fill up?"
        IN_FLIGHT Gauge "tollgate_in_flight_requests" []
            "Requests that hold a slot of a concurrency limit on this node."
            "How busy are the backends behind concurrency limits?"
        HELD_CLIENTS Gauge "tollgate_held_clients" []
            "Clients that are refused for a time, by a penalty or as a hot key."
            "How many clients are locked out now?"
        PENALTIES Counter "tollgate_penalty_cooldowns_total" []
            "Cooldowns given to clients that ignored Retry-After."
            "Do clients ignore Retry-After?"
        HOT_KEYS Gauge "tollgate_hot_keys" []
            "Keys above the hot key rate in the last second."
            "Does a client flood the API?"
        HOTTEST_KEY Gauge "tollgate_hottest_key_requests_per_second" []
            "Estimated rate of the hottest key in the last second; 0 if no key is hot."
            "How hard does it hit?"
        HOT_KEY_DENIALS Counter "tollgate_hot_key_denials_total" []
            "Times a hot key was denied for a while."
            "Does the automatic denial work?"
        KEYS_AT_ZERO Gauge "tollgate_keys_at_zero" []
            "Keys among the top limited ones that have been limited without a break for 5 minutes."
            "Is a limit too low for a regular client?"
    }
    "Gateway" {
        GATEWAY_REQUESTS Counter "tollgate_gateway_requests_total" ["route", "status"]
            "Responses of the gateway by route and status class, refusals included; the route is empty for requests that match none."
            "Which routes fail?"
        GATEWAY_DURATION Histogram "tollgate_gateway_request_duration_seconds" ["result"]
            "Time from the head of a request to the head of the response; result is admitted or refused. Refusals by the fast path for repeats are not measured."
            "How fast is the service, as clients see it?"
        UPSTREAM_DURATION Histogram "tollgate_gateway_upstream_duration_seconds" ["upstream"]
            "Time from selecting a server to the head of its response, with the connection if a new one is needed."
            "Is an upstream slow?"
        UPSTREAM_HEALTHY Gauge "tollgate_gateway_upstream_healthy" ["upstream", "server"]
            "1 if the server is healthy, else 0."
            "Which servers are ejected?"
        UPSTREAM_RETRIES Counter "tollgate_gateway_upstream_retries_total" ["upstream"]
            "Requests that were sent again after a failure."
            "Do servers drop requests?"
        UPSTREAM_ERRORS Counter "tollgate_gateway_upstream_errors_total" ["upstream", "kind"]
            "Attempts without a response; kind is no_healthy_server, connect, connect_timeout, local, timeout, closed or protocol."
            "Why does an upstream fail?"
        GATEWAY_CONNECTIONS Gauge "tollgate_gateway_connections" []
            "Open connections of clients."
            "How many clients are connected?"
        GATEWAY_CONNECTIONS_OPENED Counter "tollgate_gateway_connections_opened_total" []
            "Connections of clients that were accepted."
            "Do clients keep connections open?"
        GATEWAY_CONNECTIONS_REFUSED Counter "tollgate_gateway_connections_refused_total" []
            "Connections that were closed at accept, because of a connection limit or after too many refusals."
            "Does one address open too many connections?"
        TLS_HANDSHAKES Counter "tollgate_gateway_tls_handshakes_total" ["result"]
            "TLS handshakes by result, ok or failed."
            "Do clients fail to connect with TLS?"
        GATEWAY_BYTES Counter "tollgate_gateway_body_bytes_total" ["direction"]
            "Bytes of bodies and tunnels: received from clients, sent to clients. Those of a tunnel are added when it ends."
            "How much data passes?"
    }
    "Telemetry" {
        LOG_LINES_DROPPED Counter "tollgate_log_lines_dropped_total" ["log"]
            "Log lines that were dropped because the output was slow, full or over its rate; log is process, access or decision."
            "Are logs complete?"
        EXPORT_FAILURES Counter "tollgate_export_failures_total" ["exporter"]
            "Exports that failed; exporter is otlp or statsd."
            "Do the telemetry backends receive data?"
        SPANS_DROPPED Counter "tollgate_spans_dropped_total" []
            "Sampled traces of store calls that were dropped because the exporter was slow."
            "Are traces complete?"
    }
    "Process" {
        BUILD_INFO Gauge "tollgate_build_info" ["version"]
            "Always 1; the label is the version."
            "Which version runs where?"
        PROCESS_CPU Counter "process_cpu_seconds_total" []
            "CPU time of the process, user and system."
            "How much CPU does a node use?"
        PROCESS_MEMORY Gauge "process_resident_memory_bytes" []
            "Resident memory of the process."
            "How much memory does a node use?"
        PROCESS_FDS Gauge "process_open_fds" []
            "Open file descriptors."
            "Is the node near its limit of descriptors?"
        PROCESS_MAX_FDS Gauge "process_max_fds" []
            "Limit of open file descriptors."
            "Is the node near its limit of descriptors?"
        PROCESS_START Gauge "process_start_time_seconds" []
            "Unix time at which the process started."
            "Did a node restart?"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut names = std::collections::BTreeSet::new();
        for metric in ALL {
            assert!(names.insert(metric.name), "{} is defined twice", metric.name);
            assert!(metric.name.starts_with("tollgate_") || metric.name.starts_with("process_"));
            assert!(metric.name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{}", metric.name);
            assert_eq!(
                metric.kind == MetricKind::Counter,
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.') && metric.question.ends_with('?'), "{}", metric.name);
        }
    }
}
