//! The admin page: files of `page/`, which are part of the binary.
//!
//! The page is hand-written HTML, CSS and ES modules. All files but the first are under a folder whose name is the digest of
//! their contents, so that a browser keeps them until they change, and never mixes two versions.

use crate::admin::Problem;
use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use tollgate_http::{FullResponse, response};

const FIRST: &str = include_str!("../page/index.html");
/// In the first file, the place of the digest.
const DIGEST_MARK: &str = "DIGEST";
/// The bytes of the digest that are used.
const DIGEST_BYTES: usize = 8;

/// Name, media type and content of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("api.js", JAVASCRIPT, include_str!("../page/api.js")),
    ("app.js", JAVASCRIPT, include_str!("../page/app.js")),
    ("audit.js", JAVASCRIPT, include_str!("../page/audit.js")),
    ("chart.js", JAVASCRIPT, include_str!("../page/chart.js")),
    ("dialog.js", JAVASCRIPT, include_str!("../page/dialog.js")),
    ("diff.js", JAVASCRIPT, include_str!("../page/diff.js")),
    ("difference.js", JAVASCRIPT, include_str!("../page/difference.js")),
    ("dom.js", JAVASCRIPT, include_str!("../page/dom.js")),
    ("editor.js", JAVASCRIPT, include_str!("../page/editor.js")),
    ("format.js", JAVASCRIPT, include_str!("../page/format.js")),
    ("icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("keys.js", JAVASCRIPT, include_str!("../page/keys.js")),
    ("live.js", JAVASCRIPT, include_str!("../page/live.js")),
    ("login.js", JAVASCRIPT, include_str!("../page/login.js")),
    ("nodes.js", JAVASCRIPT, include_str!("../page/nodes.js")),
    ("overview.js", JAVASCRIPT, include_str!("../page/overview.js")),
    ("page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("rules.js", JAVASCRIPT, include_str!("../page/rules.js")),
    ("theme.js", JAVASCRIPT, include_str!("../page/theme.js")),
    ("top.js", JAVASCRIPT, include_str!("../page/top.js")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The page as it is sent.
struct AdminPage {
    digest: String,
    tag: HeaderValue,
    first: Bytes,
    /// In the order of [`FILES`].
    files: Vec<Bytes>,
}

impl AdminPage {
    fn new() -> Self {
        let files: Vec<Bytes> = FILES.iter().map(|(_, _, text)| sent(text).into()).collect();
        let all = [FIRST.as_bytes(), &files.concat()].concat();
        let digest = digest(&SHA256, &all);
        let digest: String =
            digest.as_ref().iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let tag =
            HeaderValue::from_str(&format!("\"{digest}\"")).expect("hexadecimal digits are a valid header");
        let first = sent(FIRST).replace(DIGEST_MARK, &digest).into();
        Self { digest, tag, first, files }
    }

    /// The first file: a browser asks for it each time, and gets it if it has changed.
    fn first(&self, headers: &HeaderMap) -> Response {
        if headers.get_all(IF_NONE_MATCH).iter().any(|known| *known == self.tag) {
            return response::not_modified(self.tag.clone()).map(Body::new);
        }
        self.cached(response::content("text/html; charset=utf-8", self.first.to_vec()), "no-cache")
    }

    /// Another file of this version of the page, which never changes.
    fn file(&self, digest: &str, name: &str) -> Option<Response> {
        let index = FILES.iter().position(|file| file.0 == name).filter(|_| digest == self.digest)?;
        let content = response::content(FILES[index].1, self.files[index].to_vec());
        Some(self.cached(content, "public, max-age=31536000, immutable"))
    }

    fn cached(&self, content: FullResponse, caching: &'static str) -> Response {
        let mut content = content.map(Body::new);
        content.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        content.headers_mut().insert(ETAG, self.tag.clone());
        content
    }
}

/// A text without indentation and without lines that are comments: they are for readers of the source.
fn sent(text: &str) -> String {
    let is_comment = |line: &str| line.starts_with("//") || (line.starts_with("/*") && line.ends_with("*/"));
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_comment(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The routes of the page. It is open without a token, as it shows a login.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = Arc::new(AdminPage::new());
    let files = Arc::clone(&page);
    let first = move |headers: HeaderMap| async move { page.first(&headers) };
    let file = move |Path((digest, name)): Path<(String, String)>| async move {
        files.file(&digest, &name).ok_or_else(|| Problem::not_found("the page has changed; reload it"))
    };
    Router::new().route("/", get(first)).route("/page/{digest}/{name}", get(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow line loads it within a second or two.
    #[test]
    fn it_is_small() {
        let page = AdminPage::new();
        let size = page.first.len() + page.files.iter().map(Bytes::len).sum::<usize>();
        assert!(size < 100_000, "{size} bytes");
    }

    #[test]
    fn every_file_that_it_names_is_sent() {
        let page = AdminPage::new();
        let first = std::str::from_utf8(&page.first).unwrap();
        let mut named: Vec<&str> = first.split(&format!("/page/{}/", page.digest)).skip(1).collect();
        named.extend(FILES.iter().flat_map(|(_, _, text)| text.split("from './").skip(1)));
        for rest in named {
            let name = rest.split(['"', '\'']).next().unwrap();
            assert!(page.file(&page.digest, name).is_some(), "{name}");
        }
        assert!(page.file("other", "app.js").is_none(), "a file of another version");
    }

    #[test]
    fn nothing_is_parsed_as_html_and_no_other_host_is_asked() {
        for (name, _, text) in FILES.iter().chain([&("index.html", "", FIRST)]) {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=",
                "//fonts",
                "https://",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
    }
}
