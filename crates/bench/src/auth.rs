//! Forward-auth, `GET /v1/auth` as nginx asks, beside a bare hyper server with a constant response of the same headers.

use crate::http_peer::{MeasuredEndpoint, compare, serve_role};

pub fn run() {
    if !serve_role(MeasuredEndpoint::Auth) {
        compare(MeasuredEndpoint::Auth, 0.85);
    }
}
