//! Asks servers whether they are well.

use crate::body::Sent;
use crate::forward::Shared;
use crate::settings::HealthCheck;
use crate::upstream::Member;
use crate::upstream::connect::Connector;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request};
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Asks every server that is to be asked, until the runtime ends.
pub(crate) fn start(shared: &Shared, connector: &Connector) {
    for upstream in &shared.upstreams {
        let Some(check) = &upstream.settings.health else { continue };
        for member in &upstream.members {
            let (name, check) = (upstream.settings.name.clone(), check.clone());
            tokio::spawn(follow(name, Arc::clone(member), check, connector.clone()));
        }
    }
}

async fn follow(upstream: String, member: Arc<Member>, check: HealthCheck, connector: Connector) {
    let mut every = interval(check.interval);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let well = ask(&member, &check, &connector).await;
        if member.health.checked(well) {
            let address = &member.address;
            if well {
                tracing::info!(upstream, %address, "well again, by its health check");
            } else {
                tracing::warn!(upstream, %address, path = check.path, "left alone: its health check fails");
            }
        }
    }
}

/// Asks once, on a connection of its own: that it can be connected to is part of the question.
async fn ask(member: &Member, check: &HealthCheck, connector: &Connector) -> bool {
    let asked = async {
        let mut connection = connector.connect(&member.address, check.timeout).await.ok()?;
        let mut request = Request::new(Sent::empty());
        *request.uri_mut() = check.path.parse().ok()?;
        let host = format!("{}:{}", member.address.host, member.address.port);
        request.headers_mut().insert(HOST, HeaderValue::try_from(host).ok()?);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let answer = connection.sender.send_request(request).await.ok()?;
        tollgate_http::response::is_healthy(&answer).then_some(())
    };
    timeout(check.timeout, asked).await.ok().flatten().is_some()
}
