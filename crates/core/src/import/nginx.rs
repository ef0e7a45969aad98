//! Imports the limits of an nginx configuration: `limit_req` and `limit_conn`.
//!
//! A zone is a key and, for requests, a rate; a use of it states a burst, in a server or location. nginx counts the excess
//! over the rate in a leaky bucket, with the first request free: `burst=20` is `gcra` with `burst: 20`, exactly. Without
//! `nodelay` requests leave at the rate: a `leaky_bucket` with a queue. Each use becomes a rule for the areas in which it
//! applies. Areas of the same zone and numbers are one rule where conditions can express that, because they share their
//! counts in nginx.

mod areas;
mod conditions;
mod differences;
mod locations;
mod maps;
mod nested_regex;
mod networks;
mod reader;
mod redirects;
mod returns;
mod scopes;
mod syntax;
mod uses;
mod variables;

use super::draft::{EndpointMatching, RuleDraft, RuleFileDraft};
use super::{ImportErrors, ImportedRules, finish};
use crate::diagnostic::{Diagnostic, TextPosition};
use areas::{AreaGroup, area_groups};
use locations::LocationPattern;
use reader::ConfigFiles;
pub use reader::ReadIncluded;
use redirects::serves_files;
use scopes::{Enforcement, InheritedLimits, ServerArea, ServerBlock, UseTerms, ZoneUse};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use syntax::{ConfigWord, NginxDirective, error, shown, warning};
use variables::{KeyCase, KeyEvaluator, combined, is_by_server};

/// nginx keeps a slot until the request has ended.
const SLOT_TIMEOUT: &str = "1h";
const LONGEST_QUEUE_MS: u64 = 600_000;
const LONGEST_QUEUE: u64 = 100_000;

/// Imports the configuration `text`, the content of the file `name`. `read_included` finds the files of an `include`.
pub fn import(
    name: &str,
    text: &str,
    read_included: &mut ReadIncluded<'_>,
) -> Result<ImportedRules, ImportErrors> {
    let mut files = ConfigFiles::default();
    let directives = files.read(name, text, read_included);
    let mut importer = LimitImporter { files, ..LimitImporter::default() };
    importer.import(&directives);
    let text = importer.draft.write(EndpointMatching::Folded);
    finish(text, importer.files.into_reports())
}

/// A `limit_req_zone` or `limit_conn_zone`.
struct LimitZone<'c> {
    directive: &'c NginxDirective,
    key: &'c ConfigWord,
    /// In thousandths of a request per second; none for connections.
    rate: Option<u64>,
    is_used: bool,
}

#[derive(Default)]
struct LimitImporter<'c> {
    files: ConfigFiles,
    zones: BTreeMap<String, LimitZone<'c>>,
    keys: KeyEvaluator<'c>,
    servers: Vec<ServerBlock>,
    draft: RuleFileDraft,
    /// The statuses of `error_page`s that redirect to a location.
    redirected_statuses: BTreeSet<String>,
}

impl<'c> LimitImporter<'c> {
    fn import(&mut self, directives: &'c [NginxDirective]) {
        let https: Vec<&[NginxDirective]> = directives
            .iter()
            .filter(|one| one.name.text == "http")
            .filter_map(|one| one.block.as_deref())
            .collect();
        // A part of a configuration, as in conf.d.
        let contexts = if https.is_empty() { vec![directives] } else { https };
        self.warn_of_streams(directives);
        self.warn_of_code(directives);
        self.add_redirected_statuses(directives);
        for context in &contexts {
            for directive in *context {
                match directive.name.text.as_str() {
                    "limit_req_zone" | "limit_conn_zone" => self.zone(directive),
                    "map" | "geo" => {
                        self.files.hide_credentials(directive);
                        self.keys.add_map(directive);
                    }
                    _ => {}
                }
            }
        }
        for context in &contexts {
            let common = self.limits(context);
            let servers = context.iter().filter(|directive| directive.name.text == "server");
            let first = self.servers.len();
            for server in servers {
                self.server(server, &common);
            }
            if !self.servers[first..].iter().any(|server| server.is_default)
                && let Some(server) = self.servers.get_mut(first)
            {
                server.is_default = true;
            }
            if self.servers.len() == first {
                self.add_bare_context(context, common);
            }
        }
        self.rules();
        if self.zones.values().any(|zone| zone.is_used) {
            self.warn_of_internal_redirects(directives);
            self.warn_of_index_files();
        }
        let names: Vec<&str> = self.files.names().collect();
        self.draft.heading = vec![format!("Imported from the nginx configuration {}.", names.join(", "))];
        self.draft.heading.push(
            "A refusal is a 429 with Retry-After; nginx answers 503 unless limit_req_status says otherwise."
                .to_owned(),
        );
        let settings = self.keys.settings();
        if !settings.is_empty() {
            self.draft.heading.push("The rules need these settings in tollgate.yaml:".to_owned());
            self.draft.heading.push(format!("identity: {{ {} }}", settings.join(", ")));
        }
        if self.keys.needs_user {
            let text = "The rules need a source of the user in tollgate.yaml, such as `identity: { user: { jwt: sub } }`.";
            self.draft.heading.push(text.to_owned());
        }
        if self.draft.rules.is_empty() {
            let has_limits = self.zones.values().any(|zone| zone.is_used);
            let text = if has_limits { "None of its limits was imported." } else { "It has no limits." };
            self.draft.heading.push(text.to_owned());
        }
        for problem in std::mem::take(&mut self.keys.problems) {
            self.warn(problem.file, problem.position, &problem.message, &problem.hint);
        }
    }

    /// Limits that are in no server apply to all paths; so do those of a file with locations alone.
    fn add_bare_context(&mut self, context: &'c [NginxDirective], common: InheritedLimits) {
        let Some(first) = context.first() else { return };
        let pattern = LocationPattern::server();
        let (file, position) = (first.file, first.name.position);
        let limits = common.clone();
        let own = ServerArea { pattern: pattern.clone(), limits, serves_files: true, file, position };
        let mut areas = vec![own];
        self.locations(context, &pattern, &common, &mut areas);
        self.remove_limits_after_answers(context, &InheritedLimits::default(), &mut areas);
        self.servers.push(ServerBlock { names: Vec::new(), is_default: true, areas });
    }

    fn warn_of_streams(&mut self, directives: &[NginxDirective]) {
        for stream in directives.iter().filter(|directive| directive.name.text == "stream") {
            for directive in stream.block.iter().flatten() {
                let inner = directive.block.iter().flatten();
                for found in std::iter::once(directive).chain(inner) {
                    if found.name.text.starts_with("limit_conn") {
                        let message = "limits of TCP streams have no equivalent";
                        let hint = "the gateway limits the open connections of an address";
                        self.warn(found.file, found.name.position, message, hint);
                    }
                }
            }
        }
    }

    fn zone(&mut self, directive: &'c NginxDirective) {
        let Some((name, rate)) = self.zone_parameters(directive) else { return };
        let Some(key) = directive.arguments.first() else { return };
        if let Some(known) = self.zones.get(&name) {
            let line = known.directive.name.position.line;
            let message = format!("the zone `{}` is given twice", shown(&name));
            let hint = format!("the first is on line {line}");
            self.error(directive.file, directive.name.position, &message, &hint);
            return;
        }
        self.zones.insert(name, LimitZone { directive, key, rate, is_used: false });
    }

    fn server(&mut self, directive: &'c NginxDirective, common: &InheritedLimits) {
        let inner = directive.block.as_deref().unwrap_or_default();
        let limits = self.limits(inner).within(common);
        let (file, position) = (directive.file, directive.name.position);
        let pattern = LocationPattern::server();
        let mut areas = Vec::new();
        self.locations(inner, &pattern, &limits, &mut areas);
        // Without `location /`, paths without a location are in the server itself.
        if !areas.iter().any(|area| area.pattern.is_everything()) {
            let serves_files = serves_files(inner);
            areas.push(ServerArea { pattern, limits, serves_files, file, position });
        }
        self.remove_limits_after_answers(inner, common, &mut areas);
        let mut server = ServerBlock { names: Vec::new(), is_default: false, areas };
        for directive in inner {
            match directive.name.text.as_str() {
                "server_name" => self.server_names(directive, &mut server.names),
                "listen" => {
                    let is_default =
                        |word: &ConfigWord| matches!(word.text.as_str(), "default_server" | "default");
                    server.is_default |= directive.arguments.iter().any(is_default);
                }
                _ => {}
            }
        }
        self.servers.push(server);
    }

    fn server_names(&mut self, directive: &NginxDirective, names: &mut Vec<String>) {
        for word in &directive.arguments {
            match conditions::domain_patterns(&word.text) {
                _ if matches!(word.text.as_str(), "" | "_") => {}
                Some(patterns) if !word.text.starts_with('~') => names.extend(patterns),
                _ => {
                    let message = format!("the server name `{}` has no equivalent", shown(&word.text));
                    let hint = "rules name domains as a whole, or as *.example.com; limits are imported for other names only";
                    self.warn(directive.file, word.position, &message, hint);
                }
            }
        }
    }

    fn locations(
        &mut self,
        directives: &'c [NginxDirective],
        outer: &LocationPattern,
        limits: &InheritedLimits,
        areas: &mut Vec<ServerArea>,
    ) {
        for directive in directives.iter().filter(|directive| directive.name.text == "location") {
            let inner = directive.block.as_deref().unwrap_or_default();
            let own = self.limits(inner);
            let Some(pattern) = LocationPattern::parse(directive, outer, areas.len()) else {
                if directive.argument(0).starts_with('@') {
                    self.warn_of_named_location(&own);
                } else {
                    let hint = "such as `location /api/ { … }`";
                    self.error(directive.file, directive.name.position, "a location needs a path", hint);
                }
                continue;
            };
            if pattern.is_static_within_regex() && own.applied().next().is_some() {
                let message =
                    "some versions of nginx do not select this location inside of a regular expression";
                let hint = "its limits are imported as if it were selected";
                self.warn(directive.file, directive.name.position, message, hint);
            }
            let outer = limits;
            let limits = own.within(outer);
            self.locations(inner, &pattern, &limits, areas);
            let (file, position) = (directive.file, directive.name.position);
            areas.push(ServerArea { pattern, limits, serves_files: serves_files(inner), file, position });
            // The locations inside of it have answers of their own.
            if let Some(area) = areas.last_mut() {
                self.remove_limits_after_answers(inner, outer, std::slice::from_mut(area));
            }
        }
    }

    /// Writes a rule for each use, group of areas and case of the key.
    fn rules(&mut self) {
        let by_server: BTreeSet<String> = self
            .zones
            .iter()
            .filter(|(_, zone)| is_by_server(&zone.key.text))
            .map(|(name, _)| name.clone())
            .collect();
        let groups = area_groups(&self.servers, |zone| by_server.contains(zone));
        let mut rules_of_zones: BTreeMap<String, Vec<(usize, TextPosition)>> = BTreeMap::new();
        for group in &groups {
            for problem in &group.problems {
                self.warn(problem.file, problem.position, problem.message, problem.hint);
            }
            let used = group.first_use();
            let Some(zone) = self.zones.get_mut(&used.zone) else {
                let names: Vec<&str> = self.zones.keys().map(String::as_str).collect();
                let near = crate::diagnostic::nearest(&used.zone, names);
                let hint = near.map_or_else(
                    || "define it with `limit_req_zone` or `limit_conn_zone`".to_owned(),
                    |near| format!("did you mean `{near}`?"),
                );
                let message = format!("there is no zone `{}`", shown(&used.zone));
                self.error(used.file, used.position, &message, &hint);
                continue;
            };
            zone.is_used = true;
            let (file, key, rate) = (zone.directive.file, zone.key, zone.rate);
            if rate.is_some() != matches!(used.terms, UseTerms::Requests { .. }) {
                let hint = "limit_req needs a limit_req_zone, limit_conn a limit_conn_zone";
                let message = format!("the zone `{}` is of the other kind", shown(&used.zone));
                self.error(used.file, used.position, &message, hint);
                continue;
            }
            let cases = if group.is_unreachable { None } else { self.keys.cases(file, key) };
            let Some(cases) = cases else { continue };
            for case in &cases {
                self.rule(group, case, rate);
            }
            if by_server.contains(&used.zone) {
                continue;
            }
            rules_of_zones.entry(used.zone.clone()).or_default().push((used.file, used.position));
        }
        for (zone, rules) in rules_of_zones.iter().filter(|(_, rules)| rules.len() > 1) {
            for (file, position) in rules.iter().skip(1) {
                let message = format!(
                    "in nginx all uses of the zone `{}` share their counts; here each of its {} rules counts by itself",
                    shown(zone),
                    rules.len()
                );
                self.warn(
                    *file,
                    *position,
                    &message,
                    "where that matters, use the same numbers in all locations",
                );
            }
        }
        let unused: Vec<(usize, TextPosition, String)> = self
            .zones
            .iter()
            .filter(|(_, zone)| !zone.is_used)
            .map(|(name, zone)| (zone.directive.file, zone.directive.name.position, name.clone()))
            .collect();
        for (file, position, name) in unused {
            let message = format!("no limit uses the zone `{}`", shown(&name));
            self.warn(file, position, &message, "nothing is imported for it");
        }
    }

    fn rule(&mut self, group: &AreaGroup, case: &KeyCase, rate: Option<u64>) {
        let used = group.first_use().clone();
        let Some(matches) = combined(&group.matches, &case.matches) else {
            let message = "a map over the path or host beside a location or server has no equivalent";
            self.warn(
                used.file,
                used.position,
                message,
                "the limit is not imported for that value of the map",
            );
            return;
        };
        let mut except = group.except.clone();
        except.extend(&case.except);
        let domains = matches.domain.clone();
        let mut rule = RuleDraft { matches, except, domains, key: case.key(), ..RuleDraft::default() };
        rule.matches.domain.clear();
        for (used, areas) in &group.uses {
            let name = self.files.name(used.file);
            rule.comments.push(format!("{name}:{}: {} ({areas})", used.position.line, used.text));
        }
        if let Some(zone) = self.zones.get(&used.zone) {
            let name = self.files.name(zone.directive.file);
            let line = zone.directive.name.position.line;
            rule.comments.push(format!("{name}:{line}: {}", zone.directive.text()));
        }
        match (used.terms, rate) {
            (UseTerms::Requests { burst, undelayed }, Some(rate)) => {
                self.request_size(&used, group.enforcement, (burst, undelayed), rate, &mut rule);
            }
            (UseTerms::Connections(limit), _) => {
                rule.algorithm = "concurrency";
                rule.size.push(("params", json!({ "limit": limit, "timeout": SLOT_TIMEOUT })));
            }
            (UseTerms::Requests { .. }, None) => return,
        }
        if group.enforcement == Enforcement::DryRun {
            rule.on_exceed = Some(Value::from("shadow"));
        }
        if let Err(why) = rule.check(EndpointMatching::Folded) {
            let message = format!("this limit has no equivalent: {why}");
            self.warn(used.file, used.position, &message, "it is not imported");
            return;
        }
        self.draft.add(&used.zone, rule);
    }

    fn request_size(
        &mut self,
        used: &ZoneUse,
        enforcement: Enforcement,
        (burst, undelayed): (u64, u64),
        rate: u64,
        rule: &mut RuleDraft,
    ) {
        rule.size.push(("limit", json!(rate_text(rate))));
        if burst <= undelayed || enforcement == Enforcement::DryRun {
            rule.algorithm = "gcra";
            rule.size.push(("burst", json!(burst)));
            return;
        }
        rule.algorithm = "leaky_bucket";
        rule.size.push(("burst", json!(undelayed + 1)));
        let waiting = burst - undelayed;
        let longest_ms = waiting.saturating_mul(1_000_000).div_ceil(rate);
        if longest_ms > LONGEST_QUEUE_MS || waiting > LONGEST_QUEUE {
            let message = "a delay above 10 minutes, or of more than 100000 requests, has no equivalent";
            self.warn(used.file, used.position, message, "requests that would wait longer are refused");
        }
        // The length of the queue is the limit. Somewhat more time than the last place needs: it must not decide.
        let max_wait = longest_ms.saturating_add(1_000).min(LONGEST_QUEUE_MS);
        let queue = json!({ "max_wait": format!("{max_wait}ms"), "length": waiting.min(LONGEST_QUEUE) });
        rule.on_exceed = Some(json!({ "queue": queue }));
    }

    fn warn(&mut self, file: usize, position: TextPosition, message: &str, hint: &str) {
        self.files.add(file, warning(position, message, hint));
    }

    fn error(&mut self, file: usize, position: TextPosition, message: &str, hint: &str) {
        self.files.add(file, error(position, message, hint));
    }

    fn add(&mut self, file: usize, diagnostic: Diagnostic) {
        self.files.add(file, diagnostic);
    }
}

/// A rate in thousandths of a request per second, as a limit.
fn rate_text(rate: u64) -> String {
    let per_minute = u128::from(rate) * 60;
    if rate.is_multiple_of(1_000) {
        format!("{}/s", rate / 1_000)
    } else if per_minute.is_multiple_of(1_000) {
        format!("{}/min", per_minute / 1_000)
    } else {
        format!("{rate}/1000s")
    }
}
