#!/usr/bin/env python3
"""Writes the Grafana dashboards beside this file.

    generate.py           writes them
    generate.py --check   fails if one of them differs from what would be written

The metrics are those of docs/metrics.md. A panel is a line here; layout, colours and units are decided in one place.
Needs only Python's standard library.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODE = 'instance=~"$instance"'
RULE = f'{NODE}, rule=~"$rule"'
REJECTED = 'outcome=~"limited|shed"'
ADMITTED = f'{NODE}, result="admitted"'

OUTCOME_COLORS = {
    "allowed": "green", "limited": "red", "shadow_limited": "purple", "denied": "dark-red", "degraded": "orange",
    "queued": "blue", "shed": "semi-dark-red", "tarpitted": "yellow", "flagged": "light-blue",
}
STATUS_COLORS = {"1xx": "blue", "2xx": "green", "3xx": "light-blue", "4xx": "yellow", "5xx": "red"}


def thresholds(*steps):
    """Steps of (value, color); the first value is None."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


NO_THRESHOLDS = thresholds((None, "green"))


def above(warning, critical=None):
    """Green below `warning`; what is above it is orange, then red."""
    steps = [(None, "green"), (warning, "orange" if critical is not None else "red")]
    return thresholds(*steps, *([(critical, "red")] if critical is not None else []))


def rate(metric, labels=NODE, by=None):
    selector = f"{{{labels}}}" if labels else ""
    inner = f"rate({metric}{selector}[$__rate_interval])"
    return f"sum({inner})" if by is None else f"sum by ({by}) ({inner})"


def quantile(q, metric, labels=NODE, by=""):
    le = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(metric + '_bucket', labels, le)})"


def target(expr, legend="", **more):
    return {"expr": expr, "legendFormat": legend, **more}


def panel(kind, title, description, targets, *, unit="short", width=12, height=8, steps=NO_THRESHOLDS, options=None,
          custom=None, overrides=(), **defaults):
    for index, each in enumerate(targets):
        each.setdefault("refId", chr(ord("A") + index))
        each.setdefault("datasource", DATASOURCE)
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": unit, "thresholds": steps, **defaults, "custom": custom or {}},
            "overrides": list(overrides),
        },
        "options": options or {},
    }


def graph(title, description, *targets, stacked=False, bar=False, colors=None, steps=None, **more):
    """Lines over time. `steps` are drawn as lines too: they are the bars of the alerts."""
    custom = {
        "drawStyle": "bars" if bar else "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    if steps:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in (colors or {}).items()
    ]
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    more.setdefault("min", 0)
    return panel("timeseries", title, description, list(targets), custom=custom, overrides=overrides, options=options,
                 steps=steps or NO_THRESHOLDS, **more)


def stat(title, description, expr, *, legend="", width=4, height=4, **more):
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value", "graphMode": "area", "textMode": "auto",
    }
    return panel("stat", title, description, [target(expr, legend)], options=options, width=width, height=height, **more)


def heatmap(title, description, metric, labels, **more):
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "exponent": 0.5, "steps": 64},
        "yAxis": {"unit": more.get("unit", "short")},
        "legend": {"show": False},
        "tooltip": {"show": True, "yHistogram": True},
    }
    targets = [target(rate(metric + "_bucket", labels, "le"), "{{le}}", format="heatmap")]
    return panel("heatmap", title, description, targets, options=options, **more)


def timeline(title, description, expr, legend, states, **more):
    """States over time; `states` are (value, text, color)."""
    mappings = [{
        "type": "value",
        "options": {str(value): {"text": text, "color": color, "index": index}
                    for index, (value, text, color) in enumerate(states)},
    }]
    options = {"showValue": "never", "mergeValues": True, "legend": {"displayMode": "list", "placement": "bottom"}}
    return panel("state-timeline", title, description, [target(expr, legend)], options=options, mappings=mappings, **more)


def top(title, description, expr, legend, **more):
    options = {
        "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    more.setdefault("min", 0)
    return panel("bargauge", title, description, [target(expr, legend, instant=True)], options=options, **more)


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WIDTH, "h": 1}}


def arranged(panels):
    """Places panels from left to right and from top to bottom."""
    x = y = line = 0
    for number, each in enumerate(panels, 1):
        place = each["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, line = 0, y + line, 0
        each["id"] = number
        each["gridPos"] = {"x": x, "y": y, "w": place["w"], "h": place["h"]}
        x, line = x + place["w"], max(line, place["h"])
    return panels


def variable(name, label, query):
    return {
        "type": "query", "name": name, "label": label, "datasource": DATASOURCE,
        "query": {"query": query, "refId": "A"}, "definition": query,
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


VARIABLES = {
    "instance": variable("instance", "Node", "label_values(tollgate_build_info, instance)"),
    "rule": variable("rule", "Rule", "label_values(tollgate_decisions_total, rule)"),
    "shard": variable("shard", "Shard", "label_values(tollgate_store_calls_total, shard)"),
    "upstream": variable("upstream", "Upstream", "label_values(tollgate_gateway_upstream_healthy, upstream)"),
}


def dashboard(uid, title, description, variables, panels):
    datasource = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus",
                  "current": {}, "refresh": 1}
    return {
        "uid": f"tollgate-{uid}",
        "title": f"Tollgate / {title}",
        "description": description,
        "tags": ["tollgate"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [{"type": "dashboards", "title": "Tollgate", "tags": ["tollgate"], "asDropdown": True,
                   "includeVars": True, "keepTime": True}],
        "annotations": {"list": [{
            "name": "Rule changes", "enable": True, "iconColor": "blue", "datasource": DATASOURCE,
            "expr": "changes(tollgate_rules_revision[1m]) > 0", "titleFormat": "rules changed on {{instance}}",
        }]},
        "templating": {"list": [datasource, *(VARIABLES[name] for name in variables)]},
        "panels": arranged(panels),
    }


def overview():
    return dashboard("overview", "Overview", "Is Tollgate working, and what does it do to the traffic?", ["instance"], [
        stat("Decisions", "Decisions a second, on all doors.", rate("tollgate_decisions_total"), unit="reqps"),
        stat("Rejected", "Share of the requests that were rejected.",
             f"({rate('tollgate_decisions_total', f'{NODE}, {REJECTED}')} or vector(0)) / {rate('tollgate_decisions_total')}",
             unit="percentunit", steps=above(0.05, 0.5), decimals=1),
        stat("Degraded", "Decisions a second that were made without the store.",
             f"""{rate('tollgate_decisions_total', f'{NODE}, outcome="degraded"')} or vector(0)""",
             unit="reqps", steps=above(0.001)),
        stat("Added latency, p99", "99th percentile of local decisions.",
             quantile(0.99, "tollgate_decision_duration_seconds", f'{NODE}, path="local"'), unit="s", steps=above(0.001)),
        stat("Nodes", "Nodes that Prometheus scrapes.", f"count(tollgate_build_info{{{NODE}}})",
             steps=thresholds((None, "red"), (1, "green"))),
        stat("Unavailable shards", "Shards whose breaker is not closed on some node.",
             f"count(max by (shard) (tollgate_store_breaker_state{{{NODE}}}) > 0) or vector(0)", steps=above(1)),
        graph("Decisions by outcome", "What happens to the requests. Every decision is counted once.",
              target(rate("tollgate_decisions_total", by="outcome"), "{{outcome}}"),
              stacked=True, colors=OUTCOME_COLORS, unit="reqps"),
        graph("Rejected share by rule", "The alert TollgateRejectionRateHigh fires above 5 %.",
              target("max by (rule) (job_rule:tollgate_rejected:ratio_rate5m) > 0", "{{rule}}"),
              unit="percentunit", steps=above(0.05)),
        graph("Added latency", "Time that a decision takes: local ones, and those that wait for the shared store.",
              target(quantile(0.5, "tollgate_decision_duration_seconds", by="path"), "{{path}} p50"),
              target(quantile(0.99, "tollgate_decision_duration_seconds", by="path"), "{{path}} p99"),
              unit="s", custom_scale="log"),
        graph("Store latency, p99", "The alert TollgateStoreSlow fires above 5 ms.",
              target(quantile(0.99, "tollgate_store_call_duration_seconds", by="shard"), "shard {{shard}}"),
              unit="s", steps=above(0.005)),
        graph("Decisions by door", "Through which protocol the requests come.",
              target(rate("tollgate_decisions_total", by="door"), "{{door}}"), stacked=True, unit="reqps", width=8),
        graph("Invalid requests", "Requests that no decision was made for.",
              target(rate("tollgate_invalid_requests_total", by="door"), "{{door}}"), unit="reqps", width=8),
        timeline("Rules", "Stale: the source has newer rules that could not be installed, or cannot be read.",
                 f"tollgate_rules_stale{{{NODE}}}", "{{instance}}",
                 [(0, "current", "green"), (1, "stale", "red")], width=8),
        graph("CPU", "CPU time of each node, in cores.",
              target(rate("process_cpu_seconds_total", f'job="tollgate", {NODE}', "instance"), "{{instance}}"), width=8),
        graph("Memory", "Resident memory of each node.",
              target(f'process_resident_memory_bytes{{job="tollgate", {NODE}}}', "{{instance}}"), unit="bytes", width=8),
        graph("File descriptors", "Share of the limit that is in use.",
              target(f'process_open_fds{{job="tollgate", {NODE}}} / process_max_fds{{job="tollgate", {NODE}}}', "{{instance}}"),
              unit="percentunit", steps=above(0.9), width=8),
    ])


def rules():
    return dashboard("rules", "Rules", "Which rule limits what, and is a limit right?", ["instance", "rule"], [
        row("What the rules decide"),
        graph("Decisions by outcome", "Decisions of the selected rules.",
              target(rate("tollgate_decisions_total", RULE, "outcome"), "{{outcome}}"),
              stacked=True, colors=OUTCOME_COLORS, unit="reqps"),
        graph("Rejected share", "Share of the requests that each rule rejected.",
              target('max by (rule) (job_rule:tollgate_rejected:ratio_rate5m{rule=~"$rule"})', "{{rule}}"),
              unit="percentunit", steps=above(0.05)),
        graph("Would be rejected by rules in shadow mode",
              "A rule under `on_exceed: shadow` admits everything. This is the share that it would reject.",
              target(f"""{rate('tollgate_decisions_total', f'{RULE}, outcome="shadow_limited"', 'rule')}
  / {rate('tollgate_decisions_total', RULE, 'rule')}""", "{{rule}}"), unit="percentunit", width=8),
        graph("Rejected by tier", "Which clients are limited.",
              target(rate("tollgate_decisions_total", f"{RULE}, {REJECTED}", "tier"), "{{tier}}"), unit="reqps", width=8),
        graph("Rejected by route", "The ten routes with the most rejected requests.",
              target(f"topk(10, {rate('tollgate_decisions_total', f'{RULE}, {REJECTED}', 'route')})", "{{route}}"),
              unit="reqps", width=8),
        graph("Decisions by algorithm", "The algorithms of the selected rules.",
              target(rate("tollgate_decisions_total", RULE, "algorithm"), "{{algorithm}}"), stacked=True, unit="reqps", width=8),
        graph("Queued requests", "Requests that wait for their turn under `on_exceed: queue`.",
              target(f"sum by (instance) (tollgate_queued_requests{{{NODE}}})", "{{instance}}"), width=8),
        graph("Requests in flight", "Requests that hold a slot of a concurrency limit.",
              target(f"sum by (instance) (tollgate_in_flight_requests{{{NODE}}})", "{{instance}}"), width=8),
        row("Is a limit right?"),
        heatmap("Share of the limit that is left",
                "Dark at the top: clients stay far below the limit. Dark at the bottom: clients come close to it.",
                "tollgate_remaining_ratio", RULE, unit="percentunit"),
        heatmap("Retry time", "How long rejected clients are told to wait.", "tollgate_retry_after_seconds", RULE, unit="s"),
        graph("Admitted with less than a tenth left", "Share of the admitted requests after which less than a tenth of the limit was left.",
              target(f"""{rate('tollgate_remaining_ratio_bucket', f'{RULE}, le="0.1"', 'rule')}
  / {rate('tollgate_remaining_ratio_count', RULE, 'rule')}""", "{{rule}}"), unit="percentunit", max=1),
        graph("Last token taken", "Admitted requests after which the next one is rejected.",
              target(rate("tollgate_burst_exhausted_total", RULE, "rule"), "{{rule}}"), unit="reqps"),
        row("Changes"),
        graph("Revision", "Revision of the rules in force. Nodes with a rule file count by themselves.",
              target(f"tollgate_rules_revision{{{NODE}}}", "{{instance}}"), width=6, decimals=0),
        graph("Nodes by digest of the rules", "One line, unless nodes run different rules or a change is under way.",
              target(f"count by (digest) (tollgate_rules_info{{{NODE}}})", "{{digest}}"), width=6, decimals=0),
        graph("Age", "Time since the rules in force were installed.",
              target(f"time() - tollgate_rules_loaded_timestamp_seconds{{{NODE}}}", "{{instance}}"), unit="s", width=6),
        graph("Failed reloads", "Rules that were read and not installed.",
              target(f"increase(tollgate_rules_reload_failures_total{{{NODE}}}[$__rate_interval])", "{{instance}}"),
              bar=True, width=6),
        graph("Number of rules", "Rules in force.", target(f"tollgate_rules{{{NODE}}}", "{{instance}}"), width=6, decimals=0),
    ])


def store():
    shard = f'{NODE}, shard=~"$shard"'
    return dashboard("store", "Store and fleet", "Are the shards healthy, and do the nodes agree?", ["instance", "shard"], [
        row("Shared store"),
        timeline("Breakers", "While a breaker is not closed, failure policies apply to the keys of the shard.",
                 f"max by (instance, shard) (tollgate_store_breaker_state{{{shard}}})", "{{instance}} shard {{shard}}",
                 [(0, "closed", "green"), (1, "half-open", "orange"), (2, "open", "red")]),
        graph("Degraded decisions", "Decisions that were made by a failure policy.",
              target(rate("tollgate_decisions_total", f'{NODE}, outcome="degraded"', "rule"), "{{rule}}"), unit="reqps"),
        graph("Call latency", "Time between sending a script call and its reply.",
              target(quantile(0.5, "tollgate_store_call_duration_seconds", shard, "shard"), "shard {{shard}} p50"),
              target(quantile(0.99, "tollgate_store_call_duration_seconds", shard, "shard"), "shard {{shard}} p99"),
              unit="s", steps=above(0.005)),
        graph("Calls", "Script calls sent to each shard.",
              target(rate("tollgate_store_calls_total", shard, "shard"), "shard {{shard}}"), unit="reqps"),
        graph("Timeouts", "Calls without a reply within the timeout.",
              target(rate("tollgate_store_timeouts_total", shard, "shard"), "shard {{shard}}"), unit="reqps", width=8),
        graph("Errors", "Errors that a shard returned, by kind.",
              target(rate("tollgate_store_errors_total", shard, "shard, kind"), "shard {{shard}} {{kind}}"), unit="reqps", width=8),
        graph("Breaker opened", "Times the breaker of a shard opened.",
              target(f"increase(tollgate_store_breaker_opened_total{{{shard}}}[$__rate_interval])", "{{instance}} shard {{shard}}"),
              bar=True, width=8),
        graph("Unavailable time", "Share of the time during which the breaker was not closed.",
              target(f"rate(tollgate_store_unavailable_seconds_total{{{shard}}}[$__rate_interval])", "{{instance}} shard {{shard}}"),
              unit="percentunit", max=1, width=8),
        graph("Clock drift", "Clock of the shard minus clock of the node. The alert fires above 500 ms.",
              target(f"tollgate_store_clock_drift_seconds{{{shard}}}", "{{instance}} shard {{shard}}"),
              unit="s", width=8, min=None, steps=thresholds((None, "red"), (-0.5, "green"), (0.5, "red"))),
        graph("Clock steps", "Steps of the clock of a shard that nodes noticed.",
              target(f"increase(tollgate_store_clock_steps_total{{{shard}}}[$__rate_interval])", "{{instance}} shard {{shard}}"),
              bar=True, width=8),
        row("Leases"),
        graph("Checks by how they were decided", "credit and refused need no call to the store.",
              target(rate("tollgate_lease_checks_total", by="result"), "{{result}}"), stacked=True, unit="reqps", width=8),
        graph("Checks without a call", "Share of the checks that needed no call.",
              target(f"""{rate('tollgate_lease_checks_total', f'{NODE}, result=~"credit|refused"', 'instance')}
  / {rate('tollgate_lease_checks_total', by='instance')}""", "{{instance}}"), unit="percentunit", max=1, width=8),
        graph("Clients in one call", "Checks of many clients travel in one script call.",
              target(quantile(0.5, "tollgate_store_batch_clients"), "p50"),
              target(quantile(0.99, "tollgate_store_batch_clients"), "p99"), width=8),
        graph("Coalesced checks", "Checks that joined a call of other checks of the same client.",
              target(rate("tollgate_lease_coalesced_checks_total", by="instance"), "{{instance}}"), unit="reqps", width=8),
        graph("Credit", "Leased tokens that are not spent: what a crash of the node would lose.",
              target(f"tollgate_lease_credit_tokens{{{NODE}}}", "{{instance}}"), width=8),
        graph("Lease table", "Leases and remembered replies.", target(f"tollgate_leases{{{NODE}}}", "{{instance}}"), width=8),
        row("Embedded store"),
        graph("States", "States in the embedded store.", target(f"tollgate_memory_states{{{NODE}}}", "{{instance}}"), width=8),
        graph("Memory of states", "Share of the cap. New keys share overflow cells when the cap is reached.",
              target(f"tollgate_memory_bytes{{{NODE}}} / (tollgate_memory_limit_bytes{{{NODE}}} > 0)", "{{instance}}"),
              unit="percentunit", max=1, steps=above(0.8), width=8),
        graph("Evictions and overflow", "Evicted states equal a fresh one. Checks that overflow share a limit.",
              target(rate("tollgate_memory_evictions_total", by="instance"), "{{instance}} evicted"),
              target(rate("tollgate_memory_overflow_checks_total", by="instance"), "{{instance}} overflow"),
              unit="ops", width=8),
        row("Nodes"),
        graph("Nodes seen", "Nodes that share the store, as each node counts them.",
              target(f"tollgate_nodes{{{NODE}}}", "{{instance}}"), width=6, decimals=0),
        graph("Uptime", "Time since each node started.",
              target(f'time() - process_start_time_seconds{{job="tollgate", {NODE}}}', "{{instance}}"), unit="s", width=6),
        top("Versions", "Nodes by version.", f"count by (version) (tollgate_build_info{{{NODE}}})", "{{version}}", width=6),
        graph("Telemetry that was lost", "Dropped log lines and traces, and exports that failed.",
              target(rate("tollgate_log_lines_dropped_total", by="log"), "{{log}} log"),
              target(rate("tollgate_export_failures_total", by="exporter"), "{{exporter}} exports"),
              target(rate("tollgate_spans_dropped_total"), "traces"), unit="ops", width=6),
    ])


def gateway():
    upstream = f'{NODE}, upstream=~"$upstream"'
    return dashboard("gateway", "Gateway", "How do clients see the service, and which upstream fails?", ["instance", "upstream"], [
        row("Clients"),
        graph("Responses", "Responses by status class. 429 is in 4xx.",
              target(rate("tollgate_gateway_requests_total", by="status"), "{{status}}"),
              stacked=True, colors=STATUS_COLORS, unit="reqps"),
        graph("Failed responses by route", "Share of 5xx. The alert TollgateGatewayErrors fires above 5 %.",
              target("max by (route) (job_route:tollgate_gateway_errors:ratio_rate5m)", "{{route}}"),
              unit="percentunit", steps=above(0.05)),
        graph("Latency", "Time from the head of an admitted request to the head of the response.",
              target(quantile(0.5, "tollgate_gateway_request_duration_seconds", ADMITTED), "p50"),
              target(quantile(0.9, "tollgate_gateway_request_duration_seconds", ADMITTED), "p90"),
              target(quantile(0.99, "tollgate_gateway_request_duration_seconds", ADMITTED), "p99"), unit="s"),
        graph("Decisions at the gateway", "What the rules decide for requests through the gateway.",
              target(rate("tollgate_decisions_total", f'{NODE}, door="gateway"', "outcome"), "{{outcome}}"),
              stacked=True, colors=OUTCOME_COLORS, unit="reqps"),
        row("Upstreams"),
        timeline("Servers", "No requests are sent to an unhealthy server.",
                 f"min by (upstream, server) (tollgate_gateway_upstream_healthy{{{upstream}}})", "{{upstream}} {{server}}",
                 [(0, "unhealthy", "red"), (1, "healthy", "green")], width=6),
        graph("Upstream latency, p99", "Time from selecting a server to the head of its response.",
              target(quantile(0.99, "tollgate_gateway_upstream_duration_seconds", upstream, "upstream"), "{{upstream}}"),
              unit="s", width=6),
        graph("Failed attempts", "Attempts to get a response from an upstream that failed, by kind.",
              target(rate("tollgate_gateway_upstream_errors_total", upstream, "upstream, kind"), "{{upstream}} {{kind}}"),
              stacked=True, unit="ops", width=6),
        graph("Retries", "Share of the requests that were sent again after a failure.",
              target(f"""{rate('tollgate_gateway_upstream_retries_total', upstream, 'upstream')}
  / {rate('tollgate_gateway_upstream_duration_seconds_count', upstream, 'upstream')}""", "{{upstream}}"),
              unit="percentunit", steps=above(0.05), width=6),
        row("Connections"),
        graph("Open connections", "Connections of clients.",
              target(f"tollgate_gateway_connections{{{NODE}}}", "{{instance}}"), width=6),
        graph("New and refused connections", "Refused: a connection limit, or too many refusals.",
              target(rate("tollgate_gateway_connections_opened_total"), "accepted"),
              target(rate("tollgate_gateway_connections_refused_total"), "refused"),
              colors={"accepted": "green", "refused": "red"}, unit="ops", width=6),
        graph("TLS handshakes", "By result.",
              target(rate("tollgate_gateway_tls_handshakes_total", by="result"), "{{result}}"),
              colors={"ok": "green", "failed": "red"}, unit="ops", width=6),
        graph("Bodies", "Bytes of bodies, by direction.",
              target(rate("tollgate_gateway_body_bytes_total", by="direction"), "{{direction}}"), unit="Bps", width=6),
    ])


def abuse():
    return dashboard("abuse", "Abuse", "Does a client flood the API, and is it held off?", ["instance", "rule"], [
        stat("Hottest key", "Estimated rate of the hottest key on one node; 0 if no key is above `abuse: hot_per_second`.",
             f"max(tollgate_hottest_key_requests_per_second{{{NODE}}})", unit="reqps", steps=above(1)),
        stat("Hot keys", "Keys above the hot key rate in the last second.", f"sum(tollgate_hot_keys{{{NODE}}})", steps=above(1)),
        stat("Held clients", "Clients that are refused for a time, by a penalty or as a hot key.",
             f"sum(tollgate_held_clients{{{NODE}}})"),
        stat("Keys at zero", "Keys that have been limited for 5 minutes without a break.",
             f"max(tollgate_keys_at_zero{{{NODE}}})", steps=above(1)),
        stat("Rejected", "Requests rejected a second.", rate("tollgate_decisions_total", f"{RULE}, {REJECTED}"), unit="reqps"),
        stat("Denied", "Requests of clients on the deny list.",
             f"""{rate('tollgate_decisions_total', f'{NODE}, outcome="denied"')} or vector(0)""", unit="reqps"),
        graph("Hottest key", "Rate of the hottest key on each node; 0 if no key is above `abuse: hot_per_second`. The alert TollgateHotKey fires if a key stays hot.",
              target(f"tollgate_hottest_key_requests_per_second{{{NODE}}}", "{{instance}}"), unit="reqps"),
        graph("Refused requests by outcome", "limited by a rule, denied by the list, shed under load, delayed in the tarpit.",
              target(rate("tollgate_decisions_total", f'{RULE}, outcome=~"limited|denied|shed|tarpitted"', "outcome"), "{{outcome}}"),
              stacked=True, colors=OUTCOME_COLORS, unit="reqps"),
        graph("Hot keys and their denials", "Keys above the hot key rate, and the times one was denied for a while.",
              target(f"sum(tollgate_hot_keys{{{NODE}}})", "hot keys"),
              target(f"sum(increase(tollgate_hot_key_denials_total{{{NODE}}}[$__rate_interval]))", "denials"), width=8),
        graph("Cooldowns", "Cooldowns given to clients that ignored Retry-After.",
              target(rate("tollgate_penalty_cooldowns_total", by="instance"), "{{instance}}"), unit="ops", width=8),
        graph("Held clients and keys at zero", "Clients under a hold, and keys that have been limited for 5 minutes.",
              target(f"sum(tollgate_held_clients{{{NODE}}})", "held clients"),
              target(f"sum(tollgate_keys_at_zero{{{NODE}}})", "keys at zero"), width=8),
        top("Rules with the most rejections", "Rejected requests a second.",
            f"topk(10, {rate('tollgate_decisions_total', f'{RULE}, {REJECTED}', 'rule')} > 0)", "{{rule}}", unit="reqps", width=8),
        top("Routes with the most rejections", "Rejected requests a second.",
            f"topk(10, {rate('tollgate_decisions_total', f'{RULE}, {REJECTED}', 'route')} > 0)", "{{route}}", unit="reqps", width=8),
        graph("Retry time", "How long rejected clients are told to wait.",
              target(quantile(0.5, "tollgate_retry_after_seconds", RULE), "p50"),
              target(quantile(0.99, "tollgate_retry_after_seconds", RULE), "p99"), unit="s", width=8),
        graph("Overflow of the embedded store", "A flood of invented keys shows here: checks that share overflow cells.",
              target(rate("tollgate_memory_overflow_checks_total", by="instance"), "{{instance}}"), unit="ops", width=12),
        graph("Refused connections", "Connections that the gateway closed at accept.",
              target(rate("tollgate_gateway_connections_refused_total", by="instance"), "{{instance}}"), unit="ops", width=12),
    ])


def with_scale(board):
    """`custom_scale` of a panel becomes the scale of its axis."""
    for each in board["panels"]:
        defaults = each.get("fieldConfig", {}).get("defaults", {})
        if defaults.pop("custom_scale", None) == "log":
            defaults["custom"]["scaleDistribution"] = {"type": "log", "log": 10}
            defaults.pop("min", None)
        if defaults.get("min", 0) is None:
            defaults.pop("min")
    return board


def main():
    boards = {build.__name__: with_scale(build()) for build in (overview, rules, store, gateway, abuse)}
    texts = {HERE / f"{name}.json": json.dumps(board, indent=2, ensure_ascii=False) + "\n" for name, board in boards.items()}
    if "--check" in sys.argv[1:]:
        stale = [str(path) for path, text in texts.items() if not path.exists() or path.read_text() != text]
        if stale:
            sys.exit(f"run {HERE / 'generate.py'}: it would change {', '.join(stale)}")
        return
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
