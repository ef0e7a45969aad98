//! Checks the test cases of a rule file.

use super::RuleCompiler;
use crate::diagnostic::nearest;
use crate::document::DocumentPath;
use crate::path::endpoint;
use crate::rate::SECOND_US;
use crate::rules::written::{RuleTestCase, RuleTestStep};

/// The latest step: ten years after the start of the case.
const LATEST_US: u64 = 10 * 366 * 86_400 * SECOND_US;
/// The most requests of one step and of a whole file: tests run before every publish.
const MOST_SENT: u64 = 1_000_000;
const MOST_SENT_BY_ALL: u64 = 10_000_000;

impl RuleCompiler<'_> {
    pub(super) fn tests(&mut self) -> Vec<(usize, RuleTestCase)> {
        let mut tests = Vec::new();
        let mut sent = 0u64;
        for (index, test) in self.file.tests.iter().enumerate() {
            let path = DocumentPath::root().field("tests").index(index);
            if test.name.is_empty() {
                self.document.missing(&path, "this test has no name", "add `name: …`: what it shows");
            }
            if test.steps.is_empty() {
                let hint = "add `steps: [{ at: 0s, send: 100, expect: pass }]`";
                self.document.missing(&path, "this test has no steps", hint);
            }
            self.test_endpoint(test.request.endpoint.as_deref(), &path);
            let mut last_us = 0;
            for (number, step) in test.steps.iter().enumerate() {
                let path = path.field("steps").index(number);
                last_us = self.step_time(step, last_us, &path);
                self.step(step, &path);
                self.test_endpoint(step.request.endpoint.as_deref(), &path);
                sent = sent.saturating_add(step.send.unwrap_or(1));
            }
            tests.push((self.document.line(&path), test.clone()));
        }
        if sent > MOST_SENT_BY_ALL {
            let message = format!("all tests together send {sent} requests");
            self.document.error(&DocumentPath::root().field("tests"), message, "send at most 10,000,000");
        }
        tests
    }

    fn test_endpoint(&mut self, text: Option<&str>, path: &DocumentPath) {
        if let Some(Err(fault)) = text.map(endpoint) {
            let path = path.field("request").field("endpoint");
            self.document.error(&path, fault.to_string(), "such a path is refused before rules are matched");
        }
    }

    fn step_time(&mut self, step: &RuleTestStep, last_us: u64, path: &DocumentPath) -> u64 {
        let at_us = step.at.map_or(last_us, |at| at.us);
        let path = path.field("at");
        if at_us < last_us {
            self.document.error(&path, "this step is earlier than the one above", "order steps by time");
        } else if step.at.is_some() && at_us > LATEST_US {
            self.document.error(
                &path,
                "this step is more than ten years after the start",
                "shorten the test",
            );
        }
        at_us
    }

    fn step(&mut self, step: &RuleTestStep, path: &DocumentPath) {
        if step.expect.is_some() && step.pass.is_some() {
            let hint = "`expect` applies to each request, `pass` is the number that pass";
            self.document.error_at_name(&path.field("pass"), "`expect` and `pass` exclude each other", hint);
        }
        let expects = step.expect.is_some()
            || step.pass.is_some()
            || step.remaining.is_some()
            || step.rule.is_some()
            || step.retry_after.is_some();
        if !expects {
            let hint = "add `expect: pass` or `expect: limited`";
            self.document.missing(path, "this step expects nothing", hint);
        }
        let sent = step.send.unwrap_or(1);
        if sent == 0 || sent > MOST_SENT {
            let message = format!("a step cannot send {sent} requests");
            self.document.error(&path.field("send"), message, "send between 1 and 1,000,000");
        } else if let Some(pass) = step.pass.filter(|pass| *pass > sent) {
            let message = format!("{pass} of {sent} cannot pass");
            self.document.error(&path.field("pass"), message, "raise `send`, or lower `pass`");
        }
        if let Some(rule) = &step.rule {
            let known: Vec<&str> = self.parts.rules.iter().map(|rule| rule.id.as_str()).collect();
            // A rule with errors is not among the compiled ones.
            let written = self.file.rules.iter().any(|written| written.id == *rule);
            let damaged = self.document.is_damaged(&DocumentPath::root().field("rules"));
            if !known.contains(&rule.as_str()) && !written && !damaged {
                let hint = match nearest(rule, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "write the id of a rule".to_owned(),
                };
                self.document.error(&path.field("rule"), format!("there is no rule `{rule}`"), hint);
            }
        }
    }
}
