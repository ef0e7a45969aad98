//! The table of limit bypasses, with the endpoints and domains as a caller would forward them.

use crate::fixture::DoorFixture;
use serde_json::json;
use tollgate_testbed::bypass::{self, BypassOutcome, BypassSpelling};

#[tokio::test]
async fn no_spelling_bypasses_a_limit() {
    let fixture = DoorFixture::start_with(bypass::RULES).await;
    let mut client = fixture.client().await;
    for (number, row) in bypass::bypasses().enumerate() {
        let (endpoint, domain) = match row.spelling {
            BypassSpelling::Path(path) => (path, "test"),
            // The caller names the domain, in any case.
            BypassSpelling::Host(host) if host.eq_ignore_ascii_case(bypass::HOST) => (row.limited, host),
            _ => continue,
        };
        let limited_domain = if endpoint == row.limited { bypass::HOST } else { "test" };
        let check = |endpoint: &str, domain: &str| {
            json!({ "key": format!("row-{number}"), "endpoint": endpoint, "domain": domain }).to_string()
        };
        let first = client.post("/v1/check", check(row.limited, limited_domain)).await;
        assert_eq!(first.status, 200, "{row:?}: {}", first.body);
        let reply = client.post("/v1/check", check(endpoint, domain)).await;
        match row.outcome {
            BypassOutcome::Limited => assert_eq!(reply.status, 429, "{row:?}: {}", reply.body),
            BypassOutcome::Refused => {
                assert_eq!(reply.status, 400, "{row:?}: {}", reply.body);
                assert!(reply.body.contains(r#""field":"endpoint""#), "{row:?}: {}", reply.body);
            }
        }
    }
}
