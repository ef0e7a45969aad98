//! The directives of the modules `limit_req` and `limit_conn`.

use super::LimitImporter;
use super::scopes::{Enforcement, IndexFile, InheritedLimits, UseTerms, ZoneUse};
use super::syntax::{ConfigWord, NginxDirective, error, shown};

/// The largest number that nginx reads.
const LARGEST: u64 = i64::MAX as u64;
const MOST_CONNECTIONS: u64 = 65_535;

impl LimitImporter<'_> {
    /// The name of a zone, and its rate in thousandths of a request per second.
    pub(super) fn zone_parameters(&mut self, directive: &NginxDirective) -> Option<(String, Option<u64>)> {
        let counts_requests = directive.name.text == "limit_req_zone";
        let usage = if counts_requests {
            "such as `limit_req_zone $binary_remote_addr zone=name:10m rate=10r/s;`"
        } else {
            "such as `limit_conn_zone $binary_remote_addr zone=name:10m;`"
        };
        let (mut name, mut rate) = (None, 1_000);
        for word in directive.arguments.iter().skip(1) {
            if let Some(zone) = word.text.strip_prefix("zone=") {
                name = zone.split_once(':').map(|(name, _)| name.to_owned()).filter(|name| !name.is_empty());
                if name.is_none() {
                    self.invalid(directive, word, "a zone needs a name and a size", "such as zone=name:10m");
                    return None;
                }
            } else if let Some(text) = word.text.strip_prefix("rate=").filter(|_| counts_requests) {
                let Some(parsed) = parse_rate(text) else {
                    let message = format!("`{}` is not a rate", shown(text));
                    self.invalid(directive, word, &message, "write it like 10r/s or 30r/m");
                    return None;
                };
                rate = parsed;
            } else if word.text != "sync" {
                self.invalid(directive, word, &unknown(word), usage);
                return None;
            }
        }
        if directive.arguments.is_empty() || name.is_none() {
            self.add(directive.file, error(directive.name.position, "a zone needs a key and a name", usage));
        }
        let rate = counts_requests.then_some(rate);
        Some((name?, rate)).filter(|_| !directive.arguments.is_empty())
    }

    /// The limits that a block states itself.
    pub(super) fn limits(&mut self, directives: &[NginxDirective]) -> InheritedLimits {
        let mut limits = InheritedLimits::default();
        for directive in directives {
            let (file, position) = (directive.file, directive.name.position);
            match directive.name.text.as_str() {
                "limit_req" => {
                    let found = self.limit_req(directive);
                    self.add_use(limits.requests.get_or_insert_default(), found);
                }
                "limit_conn" => {
                    let found = self.limit_conn(directive);
                    self.add_use(limits.connections.get_or_insert_default(), found);
                }
                "index" => {
                    let files = limits.index.get_or_insert_default();
                    let names = directive.arguments.iter().map(|word| word.text.clone());
                    files.extend(names.map(|name| IndexFile { name, file, position }));
                }
                "limit_req_dry_run" => limits.request_dry_run = Some(self.flag(directive)),
                "limit_conn_dry_run" => limits.connection_dry_run = Some(self.flag(directive)),
                "limit_req_status" | "limit_conn_status" if directive.argument(0) != "429" => {
                    let message = format!("the status {} has no equivalent", shown(directive.argument(0)));
                    self.warn(file, position, &message, "refusals are answered with 429");
                }
                "limit_rate" | "limit_rate_after" => {
                    let message =
                        format!("`{}` has no equivalent: bytes are not limited", directive.name.text);
                    self.warn(file, position, &message, "nothing is imported for it");
                }
                "limit_req_log_level" | "limit_conn_log_level" => {
                    let message =
                        format!("`{}` has no equivalent, and no effect on limits", directive.name.text);
                    self.warn(file, position, &message, "refusals are in the decision log");
                }
                "limit_zone" => {
                    let hint = "use limit_conn_zone and limit_conn";
                    self.warn(file, position, "`limit_zone` was removed from nginx", hint);
                }
                _ => {}
            }
        }
        limits
    }

    fn add_use(&mut self, uses: &mut Vec<ZoneUse>, found: Option<ZoneUse>) {
        let Some(found) = found else { return };
        if uses.iter().any(|known| known.zone == found.zone) {
            let message = format!("the zone `{}` is used twice in this block", shown(&found.zone));
            self.add(found.file, error(found.position, &message, "keep one of them"));
        } else {
            uses.push(found);
        }
    }

    fn limit_req(&mut self, directive: &NginxDirective) -> Option<ZoneUse> {
        let usage = "such as `limit_req zone=name burst=20 nodelay;`";
        let (mut zone, mut burst, mut undelayed) = (None, 0, 0);
        for word in &directive.arguments {
            let number =
                |text: &str| text.parse::<u64>().ok().filter(|number| (1..=LARGEST).contains(number));
            let mut parsed = |text: &str| {
                let found = number(text);
                if found.is_none() {
                    let message = format!("`{}` is not a number from 1 to {LARGEST}", shown(text));
                    self.invalid(directive, word, &message, usage);
                }
                found
            };
            if let Some(name) = word.text.strip_prefix("zone=") {
                zone = Some(name.to_owned());
            } else if let Some(text) = word.text.strip_prefix("burst=") {
                burst = parsed(text)?;
            } else if let Some(text) = word.text.strip_prefix("delay=") {
                undelayed = parsed(text)?;
            } else if word.text == "nodelay" {
                undelayed = u64::MAX;
            } else {
                self.invalid(directive, word, &unknown(word), usage);
                return None;
            }
        }
        // A delay above the burst has the same effect.
        let terms = UseTerms::Requests { burst, undelayed: undelayed.min(burst) };
        self.zone_use(directive, zone.filter(|name| !name.is_empty()), terms, usage)
    }

    fn limit_conn(&mut self, directive: &NginxDirective) -> Option<ZoneUse> {
        let usage = "such as `limit_conn name 10;`";
        let [zone, number] = directive.arguments.as_slice() else {
            let message = "limit_conn needs a zone and a number";
            self.add(directive.file, error(directive.name.position, message, usage));
            return None;
        };
        let limit = number.text.parse::<u64>().ok().filter(|limit| (1..=MOST_CONNECTIONS).contains(limit));
        let Some(limit) = limit else {
            let message = format!("`{}` is not a number from 1 to {MOST_CONNECTIONS}", shown(&number.text));
            self.invalid(directive, number, &message, usage);
            return None;
        };
        self.zone_use(directive, Some(zone.text.clone()), UseTerms::Connections(limit), usage)
    }

    fn zone_use(
        &mut self,
        directive: &NginxDirective,
        zone: Option<String>,
        terms: UseTerms,
        usage: &str,
    ) -> Option<ZoneUse> {
        let (file, position) = (directive.file, directive.name.position);
        let Some(zone) = zone else {
            self.add(file, error(position, "a limit needs the name of a zone", usage));
            return None;
        };
        Some(ZoneUse { file, position, text: directive.text(), zone, terms })
    }

    fn flag(&mut self, directive: &NginxDirective) -> Enforcement {
        match directive.argument(0) {
            "on" => Enforcement::DryRun,
            "off" => Enforcement::Enforced,
            _ => {
                let message = format!("`{}` needs `on` or `off`", directive.name.text);
                self.add(directive.file, error(directive.name.position, &message, "such as `on`"));
                Enforcement::Enforced
            }
        }
    }

    fn invalid(&mut self, directive: &NginxDirective, word: &ConfigWord, message: &str, hint: &str) {
        self.add(directive.file, error(word.position, message, hint));
    }
}

fn unknown(word: &ConfigWord) -> String {
    format!("unknown parameter `{}`", shown(&word.text))
}

/// `10r/s` or `30r/m` in thousandths of a request per second, rounded down as nginx does.
fn parse_rate(text: &str) -> Option<u64> {
    let (number, seconds) = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, 60),
        _ => (text, 1),
    };
    let number: u64 = number.parse().ok().filter(|number| (1..=LARGEST).contains(number))?;
    Some(number.saturating_mul(1_000) / seconds)
}
