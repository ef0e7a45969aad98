//! Variables that are not quite the property that rules know in their place.

/// The prefix of headers that proxies write about the client.
const X_FORWARDED: &str = "x-forwarded-";
/// Headers for one connection, which the gateway removes before it asks for limits.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "upgrade",
];

/// How the value of a variable differs in rules, and what to do about it. `None` if it is the same.
pub(super) fn of_variable(name: &str) -> Option<(String, &'static str)> {
    match name {
        "request_uri" => {
            let message = "`$request_uri` has the query, which rules do not see: here it is the path alone";
            Some((
                message.to_owned(),
                "requests that differ in their query share a count; `$uri` is the path",
            ))
        }
        "http_host" => {
            let message =
                "`$http_host` is as the client wrote it: here it is the host in lower case, without its port";
            Some((message.to_owned(), "`$host` is the same in both"))
        }
        _ => of_header(&name.strip_prefix("http_")?.replace('_', "-").to_ascii_lowercase()),
    }
}

fn of_header(name: &str) -> Option<(String, &'static str)> {
    if name == "forwarded" || name.starts_with(X_FORWARDED) {
        let hint = match name {
            "forwarded" | "x-forwarded-for" => {
                "count by `$remote_addr`, with the proxies in `identity: { client_ip: { trusted: … } }` of the settings"
            }
            _ => "name the proxies in `identity: { client_ip: { trusted: … } }` of the settings",
        };
        let message = format!(
            "the gateway removes the header `{name}` unless its peer is trusted: then no limit by it applies"
        );
        return Some((message, hint));
    }
    HOP_BY_HOP.contains(&name).then(|| {
        let message = format!("the gateway removes the header `{name}`: no limit by it applies");
        (message, "count by something else, such as `$remote_addr`")
    })
}
