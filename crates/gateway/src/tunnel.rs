//! After a change of protocol: bytes in both directions, until one side ends.

use crate::body::{AnswerBody, Lease};
use crate::forward::Answer;
use crate::headers;
use crate::refusal::Refused;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tollgate_http::ReservedNames;

/// Two connections that became one.
pub(crate) struct Tunnel;

impl Tunnel {
    /// Grants the client what the server granted, and connects the two.
    pub(crate) fn open(
        client: OnUpgrade,
        mut answer: Response<Incoming>,
        lease: Lease,
        reserved: &ReservedNames,
    ) -> Result<Answer, Refused> {
        let server = hyper::upgrade::on(&mut answer);
        let protocol =
            headers::remove_hop_by_hop(answer.headers_mut(), reserved).ok_or(Refused::BadAnswer)?;
        headers::put_upgrade(answer.headers_mut(), protocol);
        tokio::spawn(async move {
            let (client, server) = tokio::join!(client, server);
            if let (Ok(client), Ok(server)) = (client, server) {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
                    tracing::debug!(%error, "a tunnel broke");
                }
            }
            // The server counts as busy until here; its connection is not used again.
            drop(lease);
        });
        Ok(answer.map(|_| AnswerBody::Own(Full::new(Bytes::new()))))
    }
}
