//! Compiles `domain`, `except`, `exactly` and `replaces`.

use super::RuleCompiler;
use super::matching::PatternSyntax;
use crate::diagnostic::nearest;
use crate::document::DocumentPath;
use crate::key::Dimension;
use crate::rules::exceptions::{ExactIdentities, RuleException};
use crate::rules::pattern::{DomainPattern, PathStrictness};
use crate::rules::short_forms::OneOrMany;
use crate::rules::written::{WrittenExcept, WrittenRule};

impl RuleCompiler<'_> {
    pub(super) fn domains(
        &mut self,
        texts: Option<&OneOrMany<String>>,
        path: &DocumentPath,
    ) -> Vec<DomainPattern> {
        let Some(texts) = texts else { return Vec::new() };
        if texts.0.is_empty() {
            self.document.missing(path, "an empty list matches no domain", "omit it to match any");
        }
        let mut patterns = Vec::new();
        for (index, text) in texts.0.iter().enumerate() {
            match DomainPattern::parse(text) {
                Some(pattern) => patterns.push(pattern),
                None => {
                    let hint = "write it like example.com, *.example.com or www.example.*";
                    let message = format!("`{text}` is not a domain or a pattern of domains");
                    self.document.error(&path.index(index), message, hint);
                }
            }
        }
        patterns
    }

    pub(super) fn except(&mut self, rule: &WrittenRule, path: &DocumentPath) -> RuleException {
        let Some(except) = &rule.except else { return RuleException::default() };
        let path = path.field("except");
        if *except == WrittenExcept::default() {
            let hint = "add a condition such as `ip: 10.0.0.0/8`, or remove it";
            self.document.missing(&path, "`except` has no condition", hint);
        }
        let strictness = PathStrictness::from_exact(except.exact);
        if except.exact && except.endpoint.is_none() && except.endpoint_regex.is_none() {
            let hint = "it applies to `endpoint` and `endpoint_regex`";
            self.document.error_at_name(&path.field("exact"), "`exact` needs an endpoint", hint);
        }
        let sources = [
            (except.endpoint.as_ref(), path.field("endpoint"), PatternSyntax::Template),
            (except.endpoint_regex.as_ref(), path.field("endpoint_regex"), PatternSyntax::Regex),
        ];
        let methods = except.methods.as_ref().map(|names| self.methods(names, &path.field("methods")));
        RuleException {
            client: self.client(Some(&except.as_match()), &path),
            endpoints: self.endpoint_patterns(sources, strictness),
            methods: methods.unwrap_or_default(),
            domains: self.domains(except.domain.as_ref(), &path.field("domain")),
        }
    }

    pub(super) fn exactly(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<ExactIdentities> {
        let names = rule.matches.as_ref()?.exactly.as_ref()?;
        let path = path.field("match").field("exactly");
        if names.0.is_empty() {
            let message = "every request has an identity, so this rule matches nothing";
            self.document.missing(&path, message, "such as `exactly: [user]`");
        }
        let mut exactly = ExactIdentities::default();
        for (index, name) in names.0.iter().enumerate() {
            let path = path.index(index);
            let before = exactly.clone();
            match Dimension::from_name(name) {
                Dimension::Named(kind) => exactly.named[kind] = true,
                Dimension::Ip => exactly.ip = true,
                Dimension::Endpoint => exactly.endpoint = true,
                Dimension::Method => exactly.method = true,
                Dimension::Custom(name) if name.is_empty() => {
                    self.document.error(&path, "an identity cannot be empty", "such as `exactly: [user]`");
                    continue;
                }
                Dimension::Custom(name) if exactly.ids.contains(&name) => {}
                Dimension::Custom(name) => exactly.ids.push(name),
                Dimension::Route | Dimension::Domain | Dimension::All => {
                    let hint = "use api_key, user, tenant, ip, endpoint, method or a custom identity";
                    self.document.error(&path, format!("`{name}` is not an identity of a request"), hint);
                    continue;
                }
            }
            if exactly == before {
                self.document.error(&path, format!("`{name}` is given twice"), "remove one of them");
            }
        }
        Some(exactly)
    }

    /// Resolves `replaces`, when all rules are known. A safety net is replaced with its rule.
    pub(super) fn replacements(&mut self) {
        let root = DocumentPath::root();
        let ids: Vec<&str> = self.file.rules.iter().map(|rule| rule.id.as_str()).collect();
        for (index, rule) in self.file.rules.iter().enumerate() {
            let Some(names) = &rule.replaces else { continue };
            let path = root.field("rules").index(index).field("replaces");
            if names.0.is_empty() {
                self.document.missing(&path, "an empty list replaces nothing", "remove it");
            }
            for (item, name) in names.0.iter().enumerate() {
                let path = path.index(item);
                let Some(target) = ids.iter().position(|id| id == name) else {
                    let known = ids.iter().copied().filter(|id| *id != rule.id);
                    let hint = nearest(name, known).map(|near| format!("did you mean `{near}`?"));
                    self.document.error(&path, format!("there is no rule `{name}`"), hint);
                    continue;
                };
                if target == index {
                    let hint = "name another rule, or remove it";
                    self.document.error(&path, "a rule cannot replace itself", hint);
                    continue;
                }
                let replaced = (0u32..).zip(&self.origins).filter(|(_, origin)| **origin == target);
                let replaced: Vec<u32> = replaced.map(|(compiled, _)| compiled).collect();
                let own = self.origins.iter().position(|origin| *origin == index);
                if let Some(own) = own {
                    self.parts.rules[own].replaces.extend(replaced);
                }
            }
        }
    }
}
