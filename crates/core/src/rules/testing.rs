//! Runs the test cases that stand beside rules, on a virtual clock.

use super::compile::LoadedRules;
use super::short_forms::AddressText;
use super::virtual_node::VirtualNode;
use super::written::{RuleTestCase, RuleTestExpectation, RuleTestRequest, RuleTestStep};
use crate::decision::{InvalidRequest, LimitStatus, Outcome};
use crate::path::endpoint;
use crate::rate::duration_text;
use crate::request::{Method, Request};
use std::borrow::Cow;

/// Where the clock of a case starts: midnight UTC on a Monday, the boundary of every window up to a week.
pub const START_US: u64 = 1_767_571_200_000_000;

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTestResult {
    /// Its name.
    pub name: String,
    /// The line it begins on.
    pub line: usize,
    /// How many requests it sent.
    pub requests: u64,
    /// What went otherwise than expected: the step, from 1, and how.
    pub failures: Vec<(usize, String)>,
}

/// What became of the cases of a rule file, and how many of them were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTestRun {
    /// Of those that ran.
    pub results: Vec<RuleTestResult>,
    /// How many did not.
    pub left_out: usize,
}

/// Runs every case of a rule file, each on a node of its own.
pub fn run_tests(loaded: &LoadedRules) -> Vec<RuleTestResult> {
    run_some_tests(loaded, |_| true).results
}

/// Runs the cases for which `may_run` says so, which is told how many requests each sends.
pub fn run_some_tests(loaded: &LoadedRules, mut may_run: impl FnMut(u64) -> bool) -> RuleTestRun {
    let mut run = RuleTestRun::default();
    for (line, case) in &loaded.tests {
        if may_run(requests(case)) {
            run.results.push(run_case(loaded, *line, case));
        } else {
            run.left_out += 1;
        }
    }
    run
}

fn requests(case: &RuleTestCase) -> u64 {
    case.steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.send.unwrap_or(1)))
}

fn run_case(loaded: &LoadedRules, line: usize, case: &RuleTestCase) -> RuleTestResult {
    let mut node = VirtualNode::default();
    let mut result =
        RuleTestResult { name: case.name.clone(), line, requests: requests(case), failures: Vec::new() };
    let start_us = case.start.map_or(START_US, |start| start.unix_us);
    let mut at_us = 0;
    for (index, step) in case.steps.iter().enumerate() {
        at_us = step.at.map_or(at_us, |at| at.us);
        if let Err(difference) =
            run_step(loaded, &mut node, &case.request, step, start_us.saturating_add(at_us))
        {
            let difference = format!("at {}: {difference}", duration_text(at_us));
            result.failures.push((index + 1, difference));
        }
    }
    result
}

fn run_step(
    loaded: &LoadedRules,
    node: &mut VirtualNode,
    base: &RuleTestRequest,
    step: &RuleTestStep,
    now_us: u64,
) -> Result<(), String> {
    let fields = step.request.over(base);
    let ids: Vec<(&str, &str)> = fields.ids.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let request = fields.as_request(&ids);
    let mut passed = 0;
    let mut last = Ok(Outcome::Unlimited);
    let sent = step.send.unwrap_or(1);
    for number in 1..=sent {
        last = node.check(loaded, &request, now_us);
        passed += u64::from(matches!(last, Ok(Outcome::Unlimited | Outcome::Admitted(_))));
        if let Some(expected) = step.expect.filter(|expected| !meets(*expected, &last)) {
            let which = if sent > 1 { format!("request {number} of {sent}: ") } else { String::new() };
            let found = describe(loaded, &last);
            return Err(format!("{which}expected {}, found {found}", said_expectation(expected)));
        }
    }
    if let Some(expected) = step.pass.filter(|expected| *expected != passed) {
        return Err(format!("expected {expected} of {sent} to pass, {passed} did"));
    }
    check_last(loaded, step, &last)
}

/// What a step expects of its last request.
fn check_last(
    loaded: &LoadedRules,
    step: &RuleTestStep,
    last: &Result<Outcome, InvalidRequest>,
) -> Result<(), String> {
    let standing = match last {
        Ok(Outcome::Admitted(standing) | Outcome::Limited(standing)) => Some(*standing),
        _ => None,
    };
    let differ = |what: &str, expected: String, found: Option<String>| {
        let found = found.unwrap_or_else(|| describe(loaded, last));
        Err(format!("expected {what} {expected}, found {found}"))
    };
    if let Some(expected) = step.retry_after
        && standing.map(|standing| standing.wait_us().unwrap_or(0)) != Some(expected.us)
    {
        let waits = standing.and_then(|standing| standing.wait_us());
        return differ("a wait of", duration_text(expected.us), waits.map(duration_text));
    }
    if let Some(expected) = step.remaining {
        let found = standing.map(|standing| u64::from(standing.remaining));
        if found != Some(expected) {
            return differ("remaining", expected.to_string(), found.map(|found| found.to_string()));
        }
    }
    if let Some(expected) = &step.rule {
        let found = standing.map(|standing| loaded.rules.rule_of(standing.limit).id.clone());
        if found.as_ref() != Some(expected) {
            return differ("the rule", format!("`{expected}`"), found.map(|found| format!("`{found}`")));
        }
    }
    Ok(())
}

fn meets(expected: RuleTestExpectation, found: &Result<Outcome, InvalidRequest>) -> bool {
    match expected {
        RuleTestExpectation::Pass => matches!(found, Ok(Outcome::Admitted(_) | Outcome::Unlimited)),
        RuleTestExpectation::Limited => matches!(found, Ok(Outcome::Limited(_))),
        RuleTestExpectation::Denied => matches!(found, Ok(Outcome::Denied)),
        RuleTestExpectation::Unlimited => matches!(found, Ok(Outcome::Unlimited)),
        RuleTestExpectation::TooCostly => matches!(found, Err(InvalidRequest::CostAboveLimit { .. })),
    }
}

fn said_expectation(expected: RuleTestExpectation) -> &'static str {
    match expected {
        RuleTestExpectation::Pass => "pass",
        RuleTestExpectation::Limited => "limited",
        RuleTestExpectation::Denied => "denied",
        RuleTestExpectation::Unlimited => "unlimited",
        RuleTestExpectation::TooCostly => "too_costly",
    }
}

fn describe(loaded: &LoadedRules, found: &Result<Outcome, InvalidRequest>) -> String {
    let by = |standing: &LimitStatus| loaded.rules.rule_of(standing.limit).id.clone();
    match found {
        Ok(Outcome::Unlimited) => "pass, with no limit".to_owned(),
        Ok(Outcome::Denied) => "denied".to_owned(),
        Ok(Outcome::Admitted(standing)) => format!("pass, {} left by `{}`", standing.remaining, by(standing)),
        Ok(Outcome::Limited(standing)) => match standing.wait_us() {
            Some(wait_us) => format!("limited by `{}` for {}", by(standing), duration_text(wait_us)),
            None => format!("limited by `{}`, with no time promised", by(standing)),
        },
        Err(invalid) => invalid.to_string(),
    }
}

/// As doors would have it. What they would refuse was found when the file was checked.
fn canonical(text: &str) -> String {
    endpoint(text).map_or_else(|_| text.to_owned(), Cow::into_owned)
}

impl RuleTestRequest {
    /// These fields, and where one is absent, that of `base`.
    fn over(&self, base: &Self) -> Self {
        let mut ids = base.ids.clone();
        ids.extend(self.ids.clone());
        Self {
            key: self.key.clone().or_else(|| base.key.clone()),
            user: self.user.clone().or_else(|| base.user.clone()),
            tenant: self.tenant.clone().or_else(|| base.tenant.clone()),
            ip: self.ip.or(base.ip),
            tier: self.tier.clone().or_else(|| base.tier.clone()),
            ids,
            domain: self.domain.clone().or_else(|| base.domain.clone()),
            endpoint: self.endpoint.as_ref().or(base.endpoint.as_ref()).map(|text| canonical(text)),
            method: self.method.clone().or_else(|| base.method.clone()),
            cost: self.cost.or(base.cost),
        }
    }

    fn as_request<'a>(&'a self, ids: &'a [(&'a str, &'a str)]) -> Request<'a> {
        Request {
            api_key: self.key.as_deref(),
            user: self.user.as_deref(),
            tenant: self.tenant.as_deref(),
            ip: self.ip.map(|AddressText(ip)| ip),
            tier: self.tier.as_deref(),
            ids,
            domain: self.domain.as_deref(),
            endpoint: self.endpoint.as_deref().unwrap_or_default(),
            method: self.method.as_deref().map(Method::from_name),
            cost: self.cost.unwrap_or(1),
            priority: None,
        }
    }
}
