//! The table of ways around a limit: a caller that passes on what it was asked for is told the same as a gateway's
//! clients are.

use crate::setting::Setting;
use serde_json::json;
use tollgate_testbed::bypass::{self, Outcome, Spelt};

#[tokio::test]
async fn no_spelling_is_a_way_around_a_limit() {
    let setting = Setting::start_with(bypass::RULES).await;
    let mut client = setting.client().await;
    for (number, row) in bypass::bypasses().enumerate() {
        let (endpoint, domain) = match row.spelt {
            Spelt::Path(path) => (path, "test"),
            // The caller names the domain, in any case.
            Spelt::Host(host) if host.eq_ignore_ascii_case(bypass::HOST) => (row.limited, host),
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
            Outcome::Limited => assert_eq!(reply.status, 429, "{row:?}: {}", reply.body),
            Outcome::Refused => {
                assert_eq!(reply.status, 400, "{row:?}: {}", reply.body);
                assert!(reply.body.contains(r#""field":"endpoint""#), "{row:?}: {}", reply.body);
            }
        }
    }
}
