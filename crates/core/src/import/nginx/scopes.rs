//! Where limits apply: servers and locations, and what they inherit.
//!
//! As in nginx, a block that has a `limit_req` of its own inherits none, and likewise for `limit_conn` and for each of the
//! other directives. A server is divided into areas: one for each location, and one for paths without a location. A request
//! is in one area.

use super::locations::LocationPattern;
use crate::diagnostic::TextPosition;

/// A use of a zone, with the directive that states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZoneUse {
    pub(super) file: usize,
    pub(super) position: TextPosition,
    pub(super) text: String,
    pub(super) zone: String,
    pub(super) terms: UseTerms,
}

/// The numbers of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum UseTerms {
    /// `limit_req`: requests beyond the rate, and how many of them are not delayed.
    Requests { burst: u64, undelayed: u64 },
    /// `limit_conn`.
    Connections(u64),
}

/// Whether limits are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Enforcement {
    #[default]
    Enforced,
    DryRun,
}

/// The directives of a block that are inherited.
#[derive(Clone, Debug, Default)]
pub(super) struct InheritedLimits {
    pub(super) requests: Option<Vec<ZoneUse>>,
    pub(super) connections: Option<Vec<ZoneUse>>,
    pub(super) request_dry_run: Option<Enforcement>,
    pub(super) connection_dry_run: Option<Enforcement>,
    /// The files of `index`.
    pub(super) index: Option<Vec<IndexFile>>,
}

/// A file of an `index`, which a request for a folder is redirected to.
#[derive(Clone, Debug)]
pub(super) struct IndexFile {
    pub(super) name: String,
    pub(super) file: usize,
    /// The place of the directive.
    pub(super) position: TextPosition,
}

impl InheritedLimits {
    /// With those of the outer block where this one has none.
    pub(super) fn within(self, outer: &Self) -> Self {
        Self {
            requests: self.requests.or_else(|| outer.requests.clone()),
            connections: self.connections.or_else(|| outer.connections.clone()),
            request_dry_run: self.request_dry_run.or(outer.request_dry_run),
            connection_dry_run: self.connection_dry_run.or(outer.connection_dry_run),
            index: self.index.or_else(|| outer.index.clone()),
        }
    }

    /// Removes all limits.
    pub(super) fn remove_uses(&mut self) {
        self.requests = None;
        self.connections = None;
    }

    /// The limits that apply, and whether they are enforced.
    pub(super) fn applied(&self) -> impl Iterator<Item = (&ZoneUse, Enforcement)> {
        let requests = self.requests.iter().flatten();
        let requests = requests.map(|used| (used, self.request_dry_run.unwrap_or_default()));
        let connections = self.connections.iter().flatten();
        requests.chain(connections.map(|used| (used, self.connection_dry_run.unwrap_or_default())))
    }
}

/// A server.
#[derive(Clone, Debug)]
pub(super) struct ServerBlock {
    /// Its names as patterns of domains.
    pub(super) names: Vec<String>,
    /// It also gets requests for hosts that no server names.
    pub(super) is_default: bool,
    pub(super) areas: Vec<ServerArea>,
}

impl ServerBlock {
    /// The area that a path is in.
    pub(super) fn area_of(&self, path: &str) -> Option<&ServerArea> {
        let matching = || self.areas.iter().filter(|area| area.pattern.matches(path));
        let is_preceded = |area: &ServerArea| matching().any(|other| other.pattern.precedes(&area.pattern));
        matching().find(|area| !is_preceded(area))
    }
}

/// A part of a server.
#[derive(Clone, Debug)]
pub(super) struct ServerArea {
    pub(super) pattern: LocationPattern,
    pub(super) limits: InheritedLimits,
    /// Requests for folders are redirected to the files of `index`.
    pub(super) serves_files: bool,
    pub(super) file: usize,
    pub(super) position: TextPosition,
}
