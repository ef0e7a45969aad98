//! The description of the API: a golden copy in the docs, checked here.

use std::path::Path;
use tollgate_control::openapi_document;

#[test]
fn the_copy_in_the_docs_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let expected = serde_json::to_string_pretty(&openapi_document()).unwrap() + "\n";
    if std::env::var_os("TOLLGATE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "docs/openapi.json is out of date; write it with \
         `TOLLGATE_UPDATE_DOCS=1 cargo test -p tollgate-control --test suite openapi`"
    );
}

/// Every operation has a summary and its error responses.
#[test]
fn every_operation_is_described() {
    let document = openapi_document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let summary = operation["summary"].as_str().or(operation["description"].as_str());
            assert!(summary.is_some_and(|summary| !summary.is_empty()), "{method} {path} has no summary");
            let responses = operation["responses"].as_object().unwrap();
            for status in ["200", "400", "401", "403", "413", "503"] {
                assert!(responses.contains_key(status), "{method} {path} lacks {status}");
            }
        }
    }
}
